package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/emit"
	"github.com/millrace/millrace/streams/storage/outbox"
	"github.com/millrace/millrace/streams/storage/outbox/outboxtest"
	"github.com/millrace/millrace/streams/storage/s3"
)

// An s3Policy is a policy document of deploy/access/s3.
type s3Policy struct {
	Version   string
	Statement []s3Statement
}

type s3Statement struct {
	Sid, Effect string
	Action      []string
	Resource    any
}

// without returns p without one action of a statement.
func (p s3Policy) without(statement int, action string) s3Policy {
	p.Statement = slices.Clone(p.Statement)
	s := &p.Statement[statement]
	s.Action = slices.DeleteFunc(slices.Clone(s.Action), func(a string) bool {
		return a == action || action == "s3:GetObject" && a == "s3:GetObjectVersion" // in MinIO one implies the other
	})
	if len(s.Action) == 0 {
		p.Statement = slices.Delete(p.Statement, statement, statement+1)
	}
	return p
}

// text returns the document for a store.
func (p s3Policy) text(t *testing.T, cfg s3.Config) string {
	t.Helper()
	text, err := json.Marshal(p)
	must(t, err)
	return strings.NewReplacer("${BUCKET}", cfg.Bucket, "${PREFIX}", cfg.Prefix+"/").Replace(string(text))
}

// s3Uses are the calls of each policy's users. Each is repeated with one action fewer, so it must not depend on what an
// earlier one has done.
func s3Uses() map[string]func(ctx context.Context, s *s3.Store, n int) error {
	read := func(ctx context.Context, s *s3.Store, n int) error {
		if err := s.Marker(ctx); err != nil {
			return err
		}
		if _, err := s.StatSpace(ctx, "s"); err != nil {
			return err
		}
		if _, err := s.StatSpace(ctx, "never-was"); !errors.Is(err, storage.ErrNoSpace) {
			return cmpOr(err, errNotYet)
		}
		if _, err := s.Stat(ctx, "s", "never-was"); !errors.Is(err, storage.ErrNotFound) {
			return cmpOr(err, errNotYet)
		}
		o, err := s.Stat(ctx, "s", "there")
		if err != nil {
			return err
		}
		r, _, err := s.Open(ctx, "s", "there", o.Version)
		if err != nil {
			return err
		}
		return errors.Join(r.Close(), readKept(ctx, s, fmt.Sprint("kept-", n)))
	}
	put := func(ctx context.Context, s *s3.Store, item string, size int, replaces string) error {
		_, err := s.Put(ctx, "s", item, bytes.NewReader(bytes.Repeat([]byte("x"), size)),
			storage.PutOptions{Size: int64(size), KeepReplaced: replaces != ""})
		return err
	}
	return map[string]func(ctx context.Context, s *s3.Store, n int) error{
		"read": read,
		"copier": func(ctx context.Context, s *s3.Store, n int) error {
			err := read(ctx, s, n)
			if err == nil {
				err = s.CreateSpace(ctx, storage.Space{Name: fmt.Sprint("space-", n)})
			}
			if err == nil {
				err = s.SetSpace(ctx, storage.Space{Name: fmt.Sprint("space-", n), Properties: map[string]string{"k": "v"}})
			}
			for _, size := range []int{10, 6 << 20, 41 << 20} { // one request, some parts, with a record
				if err == nil {
					err = put(ctx, s, fmt.Sprint("new-", n), size, "an item")
				}
			}
			return err
		},
		"deleter": func(ctx context.Context, s *s3.Store, n int) error {
			if err := read(ctx, s, n); err != nil {
				return err
			}
			if _, err := s.Delete(ctx, "s", fmt.Sprint("gone-", n), storage.DeleteOptions{KeepDeleted: true}); err != nil {
				return err
			}
			return s.DeleteSpace(ctx, fmt.Sprint("emptied-", n))
		},
		"sweeper": func(ctx context.Context, s *s3.Store, _ int) error {
			if err := s.Marker(ctx); err != nil {
				return err
			}
			for o, err := range s.List(ctx, "s", "") {
				if err == nil {
					_, err = s.Stat(ctx, "s", o.Item)
				}
				if err != nil {
					return err
				}
			}
			done, err := s.Expire(ctx, storage.ExpireOptions{RetainedBefore: time.Now().Add(time.Hour)})
			if err == nil && done.Retained == 0 {
				return errNotYet // nothing to expire: a mistake of the test
			}
			return err
		},
		"init":   func(ctx context.Context, s *s3.Store, _ int) error { return s.WriteMarker(ctx) },
		"writer": emitAll,
	}
}

// readKept reads what is kept of an item.
func readKept(ctx context.Context, s *s3.Store, item string) error {
	for k, err := range s.Kept(ctx, "s", []string{item}) {
		if err != nil {
			return err
		}
		r, _, err := s.OpenKept(ctx, storage.KeptRef{Space: "s", Item: item, ID: k.ID})
		if err != nil {
			return err
		}
		return r.Close()
	}
	return errNotYet // nothing is kept: a mistake of the test
}

// emitAll makes every mutation of a program that stores through the decorator.
func emitAll(ctx context.Context, inner *s3.Store, n int) error {
	box, err := outbox.Open(outbox.Config{Disk: outboxtest.New()})
	if err != nil {
		return err
	}
	s, err := emit.New(inner, emit.Config{Account: "acme", Store: "1", Outbox: box}, accepts{})
	if err != nil {
		return err
	}
	space, item := fmt.Sprint("program-", n), "item"
	put := func(size int, o storage.PutOptions) func() error {
		return func() error {
			o.Size = int64(size)
			_, err := s.Put(ctx, space, item, bytes.NewReader(bytes.Repeat([]byte("x"), size)), o)
			return err
		}
	}
	for _, do := range []func() error{
		func() error { return s.CreateSpace(ctx, storage.Space{Name: space}) },
		func() error {
			return s.SetSpace(ctx, storage.Space{Name: space, Properties: map[string]string{"k": "v"}})
		},
		put(10, storage.PutOptions{}), put(41<<20, storage.PutOptions{KeepReplaced: true}),
		func() error {
			_, err := s.Delete(ctx, space, item, storage.DeleteOptions{KeepDeleted: true})
			return err
		},
		func() error { return s.DeleteSpace(ctx, space) },
	} {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

// accepts is a publisher that takes every message.
type accepts struct{}

func (accepts) Publish(context.Context, ...schemas.Message) error { return nil }

// unnoticed are the actions without which the calls of s3Uses succeed, and why the policies have them.
func unnoticed() map[string]string {
	return map[string]string{
		"copier s3:GetObjectVersion":         "of a bucket with versions",
		"copier s3:AbortMultipartUpload":     "without it, uploads that failed wait for the sweeper",
		"copier s3:ListMultipartUploadParts": "without it, an interrupted upload begins again",
		"copier s3:DeleteObject":             "without it, records of uploads wait for the sweeper",
		"read s3:GetObjectVersion":           "of a bucket with versions",
		"sweeper s3:GetObjectVersion":        "of a bucket with versions",
		"sweeper s3:AbortMultipartUpload":    "MinIO does not list the uploads below a prefix",
		"deleter s3:AbortMultipartUpload":    "of items larger than 5 GiB that are kept",
		"writer s3:GetObjectVersion":         "of a bucket with versions",
		"writer s3:AbortMultipartUpload":     "without it, uploads that failed wait for the sweeper",
		"writer s3:ListMultipartUploadParts": "without it, an interrupted upload begins again",
		"init s3:AbortMultipartUpload":       "without it, an upload of the probe stays until a lifecycle rule ends it",
	}
}

// s3Denied are the calls that a Deny in a policy must stop, by its Sid.
func s3Denied() map[string]func(ctx context.Context, s *s3.Store) error {
	return map[string]func(ctx context.Context, s *s3.Store) error{
		"NeverReplaceMarker": func(ctx context.Context, s *s3.Store) error { return s.WriteMarker(ctx) },
		"NeverDeleteKeptItems": func(ctx context.Context, s *s3.Store) error {
			_, err := s.Expire(ctx, storage.ExpireOptions{Shared: true, RetainedBefore: time.Now().Add(time.Hour)})
			return err
		},
	}
}

// readS3Policy reads a file of deploy/access/s3.
func readS3Policy(t *testing.T, name string) (p s3Policy) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(accessDir, "s3", name+".json"))
	must(t, err)
	if err := json.Unmarshal(text, &p); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return p
}

// ahead is a server whose answers have the date of the day after next month, by which all uploads are stale.
func (r *realS3) ahead(t *testing.T) string {
	t.Helper()
	to, err := url.Parse(r.URL)
	must(t, err)
	srv := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(to)
			p.Out.Host = p.In.Host // it is signed
		},
		ModifyResponse: func(resp *http.Response) error {
			resp.Header.Set("Date", time.Now().AddDate(0, 1, 1).UTC().Format(http.TimeFormat))
			return nil
		},
	})
	t.Cleanup(srv.Close)
	return srv.URL
}

// TestS3LeastPrivilege makes the calls of each role with the policy of deploy/access/s3, and with one action fewer. A
// refusal is an error that says so, and never means that something is absent.
func TestS3LeastPrivilege(t *testing.T) {
	need.Full(t)
	r := newRealS3(t, harness.S3(t, harness.S3Options{Kind: harness.MinIO, Own: true}), false, false)
	owner := r.spaced(t, r.config(t))
	must(t, owner.WriteMarker(t.Context()))
	cfg := owner.cfg
	put := func(item string) {
		t.Helper()
		if _, err := owner.Put(t.Context(), "s", item, strings.NewReader(item),
			storage.PutOptions{Size: storage.UnknownSize}); err != nil {
			t.Fatal(err)
		}
	}
	put("there")
	later := r.ahead(t)
	bucket, record := owner.own("uploads/of-a-dead-process")
	n := 0
	for name, use := range s3Uses() {
		p := readS3Policy(t, name)
		as := func(p s3Policy, c s3.Config) *s3.Store {
			c.Credentials.AccessKey, c.Credentials.SecretKey, c.Credentials.SessionToken = r.Assume(t, p.text(t, c))
			return openS3(t, c).Store
		}
		with := func(p s3Policy) error {
			n++
			put(fmt.Sprint("gone-", n))
			put(fmt.Sprint("kept-", n))
			must(t, owner.CreateSpace(t.Context(), storage.Space{Name: fmt.Sprint("emptied-", n)}))
			if _, err := owner.Delete(t.Context(), "s", fmt.Sprint("kept-", n),
				storage.DeleteOptions{KeepDeleted: true}); err != nil {
				t.Fatal(err)
			}
			c := cfg
			switch name {
			case "init":
				c = r.config(t) // a place without a marker
			case "sweeper":
				c.Endpoint = later
				r.Put(t, bucket, record, fmt.Sprintf(`{"upload": "gone", "bucket": %q, "key": "%s/s/item"}`, bucket, cfg.Prefix))
			}
			return use(t.Context(), as(p, c), n)
		}
		t.Run(name, func(t *testing.T) {
			if err := with(p); err != nil {
				t.Fatalf("with the policy: %v", err)
			}
			if left := r.Keys(t, bucket, record); name == "sweeper" && len(left) > 0 {
				t.Errorf("%s is left", left)
			}
			for i, s := range p.Statement {
				if s.Effect == "Deny" {
					other := p
					other.Statement = append(readS3Policy(t, "init").Statement, p.Statement...)
					call := s3Denied()[s.Sid]
					if err := call(t.Context(), as(other, cfg)); err == nil || !strings.Contains(err.Error(), "access denied") {
						t.Errorf("%s: got %v", s.Sid, err)
					}
					other.Statement = slices.Delete(other.Statement, len(other.Statement)-len(p.Statement)+i,
						len(other.Statement)-len(p.Statement)+i+1)
					if err := call(t.Context(), as(other, cfg)); err != nil {
						t.Errorf("without the Deny of %s: %v", s.Sid, err)
					}
					continue
				}
				for _, action := range s.Action {
					err := with(p.without(i, action))
					why := unnoticed()[name+" "+action]
					switch {
					case err == nil && why == "":
						t.Errorf("without %s (%s): every call succeeds", action, s.Sid)
					case err == nil:
					case why != "":
						t.Errorf("without %s (%s): got %v, although it is %s", action, s.Sid, err, why)
					case errors.Is(err, storage.ErrNotFound), errors.Is(err, storage.ErrNoSpace),
						errors.Is(err, storage.ErrNoMarker):
						t.Errorf("without %s (%s): got absence: %v", action, s.Sid, err)
					case !strings.Contains(err.Error(), "access denied"):
						t.Errorf("without %s (%s): got %v", action, s.Sid, err)
					default:
						t.Logf("without %s (%s): %v", action, s.Sid, err)
					}
				}
			}
		})
	}
}
