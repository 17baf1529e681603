package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/storage"
)

// Mutations that one process could not publish are published once by the next one.
func TestEmittingOutlivesItsProcess(t *testing.T) {
	s := newSite(t)
	s.cfg.Outbox.Dir = t.TempDir()
	listen := s.cfg.HTTP.Listen
	s.cfg.HTTP.Listen = ""
	first, err := Open(t.Context(), s.cfg, Options{Log: s.said.Log()})
	must(t, err)
	store, err := first.EmittingStore("acme", "1", "test")
	must(t, err)
	// The topics do not exist, so nothing is acknowledged.
	must(t, store.CreateSpace(t.Context(), storage.Space{Name: "photos"}))
	if _, err := store.Put(t.Context(), "photos", "a", strings.NewReader("bytes"),
		storage.PutOptions{Size: 5}); err != nil {
		t.Fatal(err)
	}
	if n := first.Unpublished(); n != 2 {
		t.Fatalf("%d mutations are pending, want 2", n)
	}
	second, err := Open(t.Context(), s.cfg, Options{Log: s.said.Log()})
	must(t, err)
	if _, err := second.EmittingStore("acme", "1", "test"); !errors.Is(err, precondition.Err) {
		t.Errorf("a second opener: %v, want precondition.Err", err)
	}
	if _, err := second.EmittingStore("acme", "2", "test"); err != nil {
		t.Errorf("the outbox of another store: %v", err)
	}
	second.Close()
	first.Close()

	s.cfg.HTTP.Listen = listen
	third := s.run(schemas.RolePlanner)
	if store, err = third.EmittingStore("acme", "1", "test"); err != nil {
		t.Fatal(err)
	}
	if n := third.Unpublished(); n != 2 {
		t.Fatalf("%d mutations are in the outbox, want 2", n)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- store.Run(ctx) }()
	s.until(func() error {
		if n := third.Unpublished(); n != 0 {
			return fmt.Errorf("%d mutations are pending", n)
		}
		return nil
	})
	s.await("/metrics", 200, `millrace_emit_outbox_depth{account="acme",store="1"} 0`)
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	ends, err := third.admin.EndOffsets(t.Context(), schemas.Changes)
	var n int64
	for _, end := range ends {
		n += end
	}
	if err != nil || n != 2 {
		t.Errorf("%d changes in Kafka (%v), want 2", n, err)
	}
}
