package s3

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

// If the service would list only one of two items, concurrent Puts of a process do not both succeed. The later one gets
// a transient error, because the earlier one may fail.
func TestNestedAtOnce(t *testing.T) {
	for name, tt := range map[string]struct {
		first, second string
		fails         bool // the first
		during, after error
	}{
		"below":             {"a", "a/b", false, errAny, storage.ErrName},
		"far below":         {"a/b", "a/b/c/d", false, errAny, storage.ErrName},
		"above":             {"a/b", "a", false, errAny, storage.ErrName},
		"far above":         {"a/b/c/d", "a", false, errAny, storage.ErrName},
		"below, it failed":  {"a", "a/b", true, errAny, nil},
		"above, it failed":  {"a/b", "a", true, errAny, nil},
		"beside":            {"a/b", "a/c", false, nil, nil},
		"the same":          {"a/b", "a/b", false, nil, nil},
		"with the name cut": {"a/bc", "a/b", false, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			sc := &script{}
			s, _ := direct(t, s3test.Options{CleanKeys: true, HideBelow: true, Before: sc.hook})
			var during error
			begun := false
			sc.answer = func(w http.ResponseWriter, r *http.Request) bool {
				if begun || r.Method != http.MethodPut || r.URL.Path != "/"+testBucket+"/s/"+tt.first {
					return false
				}
				begun = true
				if during = put(noTest, s, tt.second, 10, storage.PutOptions{}); tt.fails {
					refuse(403, "AccessDenied")(w, r)
				}
				return tt.fails
			}
			sc.on = true
			if err := put(t.Context(), s, tt.first, 10, storage.PutOptions{}); (err != nil) != tt.fails {
				t.Fatal(err)
			}
			if (during != nil) != (tt.during != nil) || retry.IsPermanent(during) ||
				during != nil && !storage.IsNotApplied(during) {
				t.Errorf("during the first: %v, want %v", during, tt.during)
			}
			if err := put(t.Context(), s, tt.second, 10, storage.PutOptions{}); !errors.Is(err, tt.after) {
				t.Errorf("after it: %v, want %v", err, tt.after)
			}
			if len(s.puts) > 0 || len(s.putsBelow) > 0 {
				t.Errorf("still put are %v, above them %v", s.puts, s.putsBelow)

			}
		})
	}
}

// Of many concurrent Puts, exactly those that succeeded are listed.
func TestNestedRaces(t *testing.T) {
	s, srv := direct(t, s3test.Options{CleanKeys: true, HideBelow: true})
	stored := 0
	for i := range 50 {
		above := fmt.Sprint("item-", i)
		var all sync.WaitGroup
		errs := make([]error, 4)
		for n, item := range []string{above, above + "/b", above + "/b/c", above} {
			all.Go(func() { errs[n] = put(t.Context(), s, item, 1, storage.PutOptions{}) })
		}
		all.Wait()
		for _, err := range errs[:3] {
			if err == nil {
				stored++
			}
		}
		if errs[0] != nil && errs[3] == nil {
			stored++ // the same item
		}
	}
	listed := 0
	for _, err := range s.List(t.Context(), "s", "") {
		must(t, err)
		listed++
	}
	if keys := srv.Keys(testBucket, "s/"); listed != stored || len(keys) != stored {
		t.Errorf("%d were stored, %d are listed of %d", stored, listed, len(keys))
	}
}

// The cache of free ancestors is updated by a Put of an ancestor.
func TestNestedCacheIsUpdated(t *testing.T) {
	s, _ := direct(t, s3test.Options{CleanKeys: true, HideBelow: true})
	must(t, put(t.Context(), s, "a/b", 10, storage.PutOptions{}))
	if _, err := s.Delete(t.Context(), "s", "a/b", storage.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	must(t, put(t.Context(), s, "a", 10, storage.PutOptions{}))
	if err := put(t.Context(), s, "a/c", 10, storage.PutOptions{}); !errors.Is(err, storage.ErrName) {
		t.Errorf("got %v, want ErrName", err)
	}
}
