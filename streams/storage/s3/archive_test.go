package s3

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

// The restoration of an archived object is requested once, reads return retry.Wait until it is complete, and then work.
func TestArchived(t *testing.T) {
	for name, restore := range map[string]bool{"restore": true, "no restore": false} {
		t.Run(name, func(t *testing.T) {
			sc := &script{}
			s, srv := direct(t, s3test.Options{Before: sc.hook}, func(c *Config) { c.Restore = restore })
			must(t, put(t.Context(), s, "item", 10, storage.PutOptions{}))
			srv.Archive(testBucket, "s/item")
			var asked []string
			sc.answer = func(_ http.ResponseWriter, r *http.Request) bool {
				if r.URL.Query().Has("restore") {
					b, _ := io.ReadAll(r.Body)
					asked = append(asked, string(b))
				}
				return false
			}
			sc.on = true
			if o, err := s.Stat(t.Context(), "s", "item"); err != nil || o.Size != 10 {
				t.Errorf("stat: %v", err)
			}
			for what, do := range map[string]func() error{
				"open": func() error { return drain(s.Open(t.Context(), "s", "item", "")) },
				"keep": func() error { return put(t.Context(), s, "item", 20, storage.PutOptions{KeepReplaced: true}) },
			} {
				err := do()
				want := retry.ClassPermanent
				if restore {
					want = retry.ClassWait
				}
				if retry.ClassOf(err) != want || isAbsent(err) || errors.Is(err, storage.ErrUnsupported) == restore {
					t.Errorf("%s: %v is %v", what, err, retry.ClassOf(err))
				}
				if due := retry.Due(err); restore && (due.Before(time.Now()) || due.After(time.Now().Add(2*restoreWait))) {
					t.Errorf("%s is due %v", what, due)
				}
			}
			if !restore {
				if len(asked) != 0 {
					t.Errorf("asked %q", asked)
				}
				return
			}
			if len(asked) == 0 || !strings.Contains(asked[0], "<Days>7</Days>") ||
				!strings.Contains(asked[0], "<Tier>Standard</Tier>") {
				t.Errorf("asked %q", asked)
			}
			if !srv.CompleteRestore(testBucket, "s/item") {
				t.Error("no restoration was requested")
			}
			if err := drain(s.Open(t.Context(), "s", "item", "")); err != nil {
				t.Errorf("open, returned: %v", err)
			}
		})
	}
}
