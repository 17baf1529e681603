package app

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/internal/logtest"
	"github.com/millrace/millrace/streams/storage/lazy"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

// A store whose clock is more than a minute off is named once, and its offset is a metric.
func TestStoreClocks(t *testing.T) {
	t.Parallel()
	ahead := func(d time.Duration) string {
		s := s3test.New(s3test.Options{Clock: func() time.Time { return time.Now().Add(d) }})
		t.Cleanup(s.Close)
		return s.URL()
	}
	key := config.FileSecret(written(t, "k"))
	a := config.Account{ID: "acme"}
	for id, url := range map[string]string{
		"right": ahead(0), "ahead": ahead(10 * time.Minute), "behind": ahead(-time.Hour),
	} {
		a.Stores = append(a.Stores, config.Store{ID: id, Driver: "s3", Endpoint: url, BucketPrefix: "b-", PathStyle: true,
			Credentials: config.Credentials{AccessKey: key, SecretKey: key}})
	}
	lines := new(logtest.Lines)
	s, err := newStores(&config.Config{Accounts: []config.Account{a}}, lines.Log())
	must(t, err)
	for range 3 {
		for _, c := range a.Stores {
			if err := s.of(StoreName{"acme", c.ID}).lazy.Marker(t.Context()); err == nil {
				t.Error("a bucket that does not exist has a marker")
			}
		}
	}
	gathered := gatherBreakers(t, s)
	for store, want := range map[string]time.Duration{"right": 0, "ahead": 10 * time.Minute, "behind": -time.Hour} {
		var got float64
		for _, m := range gathered {
			_, _ = fmt.Sscanf(m, `millrace_store_clock_offset_seconds{account="acme",store="`+store+`"} %g`, &got)
		}
		if off := got - want.Seconds(); off < -10 || off > 10 {
			t.Errorf("store %s is %v s ahead, want %v", store, got, want)
		}
		said := lines.Count("account=acme store=" + store + " ahead=")
		if said != 1 && want != 0 || said != 0 && want == 0 {
			t.Errorf("store %s was named %d times", store, said)
		}
	}
	// A store that is opened in another way is not named again, and one that is gone has no clock.
	gone := s.of(StoreName{"acme", "behind"}).lazy
	a.Stores = slices.DeleteFunc(a.Stores, func(c config.Store) bool { return c.ID == "behind" })
	for i := range a.Stores {
		a.Stores[i].Requests.AtOnce = 3
	}
	s.set("acme", accountState{Account: a}, true)
	for _, l := range []*lazy.Store{s.of(StoreName{"acme", "ahead"}).lazy, gone} {
		if err := l.Marker(t.Context()); err == nil {
			t.Error("a bucket that does not exist has a marker")
		}
	}
	if n := lines.Count("account=acme store=ahead ahead="); n != 1 {
		t.Errorf("a store was named %d times", n)
	}
	if all := strings.Join(gatherBreakers(t, s), "\n"); strings.Contains(all, `store="behind"`) {
		t.Errorf("the store that is gone has metrics:\n%s", all)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
}
