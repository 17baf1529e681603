package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/storage"
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
	if err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer("${BUCKET}", cfg.Bucket, "${PREFIX}", cfg.Prefix+"/").Replace(string(text))
}

// s3Uses are the calls of each policy's users. Each is repeated with one action fewer, so it must not depend on what an
// earlier one has done.
func s3Uses() map[string]func(ctx context.Context, s *s3.Store, n int) error {
	read := func(ctx context.Context, s *s3.Store, _ int) error {
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
		return r.Close()
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
			_, err := s.Delete(ctx, "s", fmt.Sprint("gone-", n), storage.DeleteOptions{KeepDeleted: true})
			return err
		},
		"sweeper": func(ctx context.Context, s *s3.Store, _ int) error {
			if err := s.Marker(ctx); err != nil {
				return err
			}
			done, err := s.Expire(ctx, storage.ExpireOptions{RetainedBefore: time.Now().Add(time.Hour)})
			if err == nil && done.Retained == 0 {
				return errNotYet // nothing to expire: a mistake of the test
			}
			return err
		},
		"init": func(ctx context.Context, s *s3.Store, _ int) error { return s.WriteMarker(ctx) },
	}
}

// unnoticed are the actions without which the calls of s3Uses succeed, and why the policies have them.
func unnoticed() map[string]string {
	return map[string]string{
		"copier s3:GetObjectVersion":          "of a bucket with versions",
		"copier s3:AbortMultipartUpload":      "without it, uploads that failed wait for the sweeper",
		"copier s3:ListMultipartUploadParts":  "without it, an interrupted upload begins again",
		"copier s3:DeleteObject":              "without it, records of uploads wait for the sweeper",
		"read s3:GetObjectVersion":            "of a bucket with versions",
		"sweeper s3:AbortMultipartUpload":     "of uploads that are days old",
		"sweeper s3:ListMultipartUploadParts": "of uploads that are days old",
		"init s3:AbortMultipartUpload":        "without it, an upload of the probe waits for the sweeper",
	}
}

// TestS3LeastPrivilege makes the calls of each role with the policy of deploy/access/s3, and with one action fewer. A
// refusal is an error that says so, and never means that something is absent.
func TestS3LeastPrivilege(t *testing.T) {
	need.Integration(t)
	r := newRealS3(t, harness.S3(t, harness.S3Options{Kind: harness.MinIO, Own: true}), false, false)
	owner := r.spaced(t, r.config(t))
	if err := owner.WriteMarker(t.Context()); err != nil {
		t.Fatal(err)
	}
	cfg := owner.cfg
	put := func(item string) {
		t.Helper()
		if _, err := owner.Put(t.Context(), "s", item, strings.NewReader(item),
			storage.PutOptions{Size: storage.UnknownSize}); err != nil {
			t.Fatal(err)
		}
	}
	put("there")
	n := 0
	for name, use := range s3Uses() {
		text, err := os.ReadFile(filepath.Join(accessDir, "s3", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		var p s3Policy
		if err := json.Unmarshal(text, &p); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		with := func(p s3Policy) error {
			n++
			put(fmt.Sprint("gone-", n))
			put(fmt.Sprint("kept-", n))
			if _, err := owner.Delete(t.Context(), "s", fmt.Sprint("kept-", n),
				storage.DeleteOptions{KeepDeleted: true}); err != nil {
				t.Fatal(err)
			}
			c := cfg
			if name == "init" {
				c = r.config(t) // a place without a marker
			}
			c.Credentials.AccessKey, c.Credentials.SecretKey, c.Credentials.SessionToken = r.Assume(t, p.text(t, c))
			return use(t.Context(), openS3(t, c).Store, n)
		}
		t.Run(name, func(t *testing.T) {
			if err := with(p); err != nil {
				t.Fatalf("with the policy: %v", err)
			}
			for i, s := range p.Statement {
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
