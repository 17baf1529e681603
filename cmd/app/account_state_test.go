package app

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/config"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka/schedule"
	"github.com/millrace/millrace/streams/revision"
	"github.com/millrace/millrace/streams/steward"
)

// Settings that weaken protection hold from the revision on that has set them, not across one that cannot be read.
func TestAccountState(t *testing.T) {
	at := func(hour int) time.Time { return time.Date(2026, 9, 1, hour, 0, 0, 0, time.UTC) }
	doc := func(settings string) string {
		return `{"id": "acme", "stores": [{"id": "1", "root": "/a"` + settings + `}]}`
	}
	const auto, approve, removed = `, "repair": "auto"`, `, "repair": "approve"`, "-"
	file := func(repair string) *config.Account {
		return &config.Account{ID: "acme", Stores: []config.Store{{ID: "1", Driver: "file", Root: "/a", Repair: repair}}}
	}
	tests := map[string]struct {
		file      *config.Account
		documents []string // of revisions, one an hour from 1 on; "" is a record that cannot be decoded
		repair    string   // "": there is no account
		since     time.Time
		faulty    bool
	}{
		"nothing":                 {nil, nil, "", time.Time{}, false},
		"the configuration":       {file("auto"), nil, "auto", time.Time{}, false},
		"the topic, not the file": {file("auto"), []string{doc(approve)}, "approve", at(1), false},
		"as in the configuration": {file("auto"), []string{doc(auto)}, "auto", time.Time{}, false},
		"from a revision on": {file("approve"), []string{doc(approve), doc(auto), doc(auto)}, "auto", at(2),
			false},
		"set, reset and set":            {nil, []string{doc(auto), doc(approve), doc(auto)}, "auto", at(3), false},
		"removed and back":              {file("auto"), []string{doc(auto), removed, doc(auto)}, "auto", at(3), false},
		"removed":                       {file("auto"), []string{doc(auto), removed}, "", time.Time{}, false},
		"a record cannot be decoded":    {nil, []string{doc(auto), ""}, "auto", never, false},
		"after one that cannot be":      {nil, []string{doc(auto), "", doc(auto)}, "auto", at(3), false},
		"no document":                   {nil, []string{doc(auto), "{"}, "auto", never, true},
		"no document, of a file":        {file("auto"), []string{"{"}, "auto", never, true},
		"only a record without meaning": {file("auto"), []string{""}, "auto", never, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := newAccountRegistry(&config.Config{})
			for i, d := range tt.documents {
				if d == "" {
					r.Unreadable([]byte("acme"), at(i+1), errors.New("garbage"))
					continue
				}
				r.Apply([]byte("acme"), at(i+1), &pb.Account{Id: d, Account: "acme", Base: r.Revision("acme"), Document: d,
					Removed: d == removed})
			}
			r.View("acme", func(l *revision.Log[config.AccountDocument]) {
				got, exists := accountStateOf(tt.file, l)
				if exists != (tt.repair != "") {
					t.Fatalf("exists: %t", exists)
				}
				if !exists {
					return
				}
				since := got.since["1"].repair
				if got.Stores[0].Repair != tt.repair || !since.Equal(tt.since) || (got.faults["1"] != nil) != tt.faulty {
					t.Errorf("got %s since %v, %v; want %s since %v", got.Stores[0].Repair, since, got.faults, tt.repair, tt.since)
				}
			})
		})
	}
}

// Repairs without approval are only of faults found after the setting came into force.
func TestRepairModeOfEarlierFaults(t *testing.T) {
	s, err := newStores(&config.Config{}, new(site).said.Log())
	must(t, err)
	set := time.Now()
	store := config.Store{ID: "1", Driver: "file", Root: "/a", Repair: "auto", ExternalWrites: "expected",
		Corrections: "auto", Read: "never"}
	s.set("acme", accountState{Account: config.Account{ID: "acme", Stores: []config.Store{store}},
		since: map[string]since{"1": {repair: set, externalWrites: set, corrections: set, read: set}}}, true)
	for found, want := range map[time.Time]steward.Mode{
		set.Add(-time.Second): steward.Approve, set: steward.Auto, set.Add(time.Second): steward.Auto,
	} {
		if got := s.RepairMode("acme", "1", found); got != want {
			t.Errorf("found %v: got %s, want %s", found.Sub(set), got, want)
		}
	}
	if got := s.Settings("acme", "1"); !got.ExternalWrites || !got.ExternalWritesSince.Equal(set) {
		t.Errorf("external writes: %+v", got)
	} else if !got.NeverRead || !got.NeverReadSince.Equal(set) {
		t.Errorf("read: %+v", got)
	} else if !got.CorrectUpdates || !got.CorrectUpdatesSince.Equal(set) {
		t.Errorf("corrections: %+v", got)
	}
}

// Changes of an account keep what they do not concern: drivers, breakers, tasks that run. Of two stores in one place,
// the later one is not used, whatever the order in which they are read.
func TestSetStores(t *testing.T) {
	s, err := newStores(&config.Config{}, new(site).said.Log())
	must(t, err)
	slots := schedule.NewSlots(s.limit)
	account := func(id, root string, at int, change func(*config.Store)) []string {
		st := config.Store{ID: "1", Driver: "file", Root: root}
		change(&st)
		ids := s.set(id, accountState{Account: config.Account{ID: id, Stores: []config.Store{st}},
			since: map[string]since{"1": {place: time.Unix(int64(at), 0)}}}, true)
		slots.Refresh(id, ids...)
		return ids
	}
	of := func(id string) store { return s.of(StoreName{id, "1"}) }
	unchanged := func(*config.Store) {}
	account("a", "/srv/a", 2, unchanged)
	first := of("a")
	changed := s.change()
	account("a", "/srv/a", 2, func(c *config.Store) { c.Limits.Tasks, c.Repair = 2, "off" })
	if now := of("a"); now.Store != first.Store || now.cfg.Limits.Tasks != 2 || s.limit("a", "1").Tasks != 2 {
		t.Errorf("limits: %+v", now)
	}
	select {
	case <-changed:
	default:
		t.Error("no change is announced")
	}
	account("a", "/srv/a", 2, func(c *config.Store) { c.Requests.AtOnce = 2 })
	if now := of("a"); now.Store == first.Store || now.breaker != first.breaker {
		t.Error("with other limits of requests, the breaker stays")
	}
	account("b", "/srv/a/in", 1, unchanged)
	if of("b").fault != "" || !strings.Contains(of("a").fault, "it is in the place of store b/1") {
		t.Errorf("a: %q, b: %q", of("a").fault, of("b").fault)
	}
	account("c", "/srv/a/in", 3, unchanged)
	if of("b").fault != "" || of("c").fault == "" {
		t.Errorf("b: %q, c: %q", of("b").fault, of("c").fault)
	}
	s.set("b", accountState{}, false)
	if of("a").fault != "" || of("c").fault == "" || s.IDs("b") != nil {
		t.Errorf("a: %q, c: %q", of("a").fault, of("c").fault)
	}
	buckets := func(id string, at int, bucket, prefix string) {
		st := config.Store{ID: "1", Driver: "s3", Endpoint: "https://s3.example", Bucket: bucket, BucketPrefix: prefix}
		s.set(id, accountState{Account: config.Account{ID: id, Stores: []config.Store{st}},
			since: map[string]since{"1": {place: time.Unix(int64(at), 0)}}}, true)
	}
	buckets("d", 1, "", "acme-")
	buckets("e", 2, "acme-photos", "")
	buckets("f", 3, "", "acme-x-")
	buckets("g", 4, "acme", "")
	if of("d").fault != "" || of("e").fault == "" || of("f").fault == "" || of("g").fault != "" {
		t.Errorf("d: %q, e: %q, f: %q, g: %q", of("d").fault, of("e").fault, of("f").fault, of("g").fault)
	}
	first = store{}
	runtime.KeepAlive(first) // nothing refers to the first store any more
	for range 100 {          // stores that were replaced are closed when nothing refers to them
		runtime.GC()
		s.mu.Lock()
		n := len(s.replaced)
		s.mu.Unlock()
		if n == 0 {
			return
		}
		runtime.Gosched()
	}
	t.Errorf("%d stores are not closed", len(s.replaced))
}

// A task of a store that no account has waits until the topic was read since.
func TestAdmitUnknownStore(t *testing.T) {
	s, err := newStores(&config.Config{}, new(site).said.Log())
	must(t, err)
	if err := s.Admit("acme", "1"); err != nil {
		t.Errorf("without a topic: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	read, ended := make(chan error), make(chan struct{})
	s.catchUp = func(context.Context) error { return <-read }
	go func() {
		defer close(ended)
		s.readForUnknown(ctx)
	}()
	if err := s.Admit("acme", "1"); err == nil {
		t.Error("admitted before the topic is read")
	}
	read <- errors.New("no broker")
	if err := s.Admit("acme", "1"); err == nil {
		t.Error("admitted although the topic cannot be read")
	}
	read <- nil
	for s.Admit("acme", "1") != nil {
		select {
		case read <- nil:
		default:
			runtime.Gosched()
		}
	}
	cancel()
	close(read)
	<-ended
}
