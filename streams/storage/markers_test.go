package storage_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// All waiting callers share one reading of a marker. If it ends without an answer, because the store panics or the
// reader's context ends, one of those that wait reads again, and so does the next caller.
func TestConfirmTogether(t *testing.T) {
	for name, tt := range map[string]struct {
		fault storagetest.Fault
		first error // of the caller that reads; nil: it panics
		want  error // of those that wait
		reads int   // with that of the next caller
	}{
		"it fails":                  {storagetest.Fault{}, storagetest.ErrFault, storagetest.ErrFault, 2},
		"the store panics":          {storagetest.Fault{Panic: true}, nil, nil, 2},
		"it panics with the answer": {storagetest.Fault{Panic: true, Applied: true}, nil, nil, 2},
		"its caller goes":           {storagetest.Fault{Err: context.Canceled}, context.Canceled, nil, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, err := mem.New(mem.Config{ID: "1"})
				must(t, err)
				must(t, m.WriteMarker(t.Context()))
				s := storagetest.NewFaulty(m)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				goOn := make(chan struct{})
				s.Before(func(context.Context, storagetest.Call) error {
					<-goOn
					if tt.first == context.Canceled {
						cancel()
					}
					return nil
				})
				tt.fault.Method = "Marker"
				s.Script(tt.fault)
				var markers storage.Markers
				begun := time.Now()
				first := make(chan error, 1)
				go func() {
					defer func() {
						if p := recover(); p != nil {
							first <- nil
						}
					}()
					first <- markers.Confirm(ctx, "1", s, begun)
				}()
				synctest.Wait()
				waits := make(chan error, 3)
				for range cap(waits) {
					go func() { waits <- markers.Confirm(t.Context(), "1", s, begun) }()
				}
				synctest.Wait()
				close(goOn)
				if err := <-first; !errors.Is(err, tt.first) {
					t.Errorf("reading caller: %v, want %v", err, tt.first)
				}
				for range cap(waits) {
					if err := <-waits; !errors.Is(err, tt.want) {
						t.Errorf("waiting caller: %v, want %v", err, tt.want)
					}
				}
				if err := markers.Confirm(t.Context(), "1", s, begun); err != nil {
					t.Errorf("the next caller: %v", err)
				}
				if n := s.Count("Marker"); n != tt.reads {
					t.Errorf("%d readings, want %d", n, tt.reads)
				}
			})
		})
	}
}
