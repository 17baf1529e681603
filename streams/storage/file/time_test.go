package file

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// began returns a Put that is ready to lock the item.
func began(t *testing.T, s *Store, item string) *write {
	t.Helper()
	p, err := newItemPath(sp, item)
	must(t, err)
	tmp, err := s.sess.temp()
	must(t, err)
	t.Cleanup(tmp.discard)
	w := &write{s: s, sess: s.sess, p: p, t: tmp}
	t.Cleanup(w.discard)
	must(t, w.syncEarly())
	return w
}

// The time of a Put is after that of earlier deletes by any process, whatever the clock says.
func TestPutIsLaterThanDeletes(t *testing.T) {
	ctx := t.Context()
	del := func(t *testing.T, s *Store) time.Time {
		t.Helper()
		d, err := s.Delete(ctx, sp, "a", storage.DeleteOptions{})
		must(t, err)
		return d.Time
	}
	back := func(now *time.Time) { *now = now.Add(-2 * time.Second) }
	tests := map[string]func(t *testing.T, s *Store, now *time.Time) (deleted, put time.Time){
		"a delete while it waits for the lock": func(t *testing.T, s *Store, _ *time.Time) (time.Time, time.Time) {
			w := began(t, s, "a")
			at := del(t, s)
			must(t, w.commit(ctx))
			return at, stat(t, s, "a").Modified
		},
		"the clock goes back": func(t *testing.T, s *Store, now *time.Time) (time.Time, time.Time) {
			at := del(t, s)
			back(now)
			return at, put(t, s, "a", "two").Modified
		},
		"the clock of another process is behind": func(t *testing.T, s *Store, now *time.Time) (time.Time, time.Time) {
			at := del(t, s)
			must(t, s.Close())
			behind := now.Add(-4 * time.Minute)
			return at, put(t, open(t, Config{Root: s.cfg.Root, now: func() time.Time { return behind }}), "a", "two").Modified
		},
		"a second delete is later than the first": func(t *testing.T, s *Store, now *time.Time) (time.Time, time.Time) {
			at := del(t, s)
			back(now)
			must(t, os.WriteFile(filepath.Join(s.cfg.Root, sp, "a"), nil, 0o666),
				os.Chtimes(filepath.Join(s.cfg.Root, sp, "a"), time.Time{}, *now))
			return at, del(t, s)
		},
		"the process died before it removed the file": func(t *testing.T, s *Store, now *time.Time) (time.Time, time.Time) {
			p, err := newItemPath(sp, "a")
			must(t, err)
			at := now.Add(time.Second)
			must(t, s.sess.recordDelete(p, at))
			return at, put(t, s, "a", "two").Modified
		},
	}
	for name, f := range tests {
		t.Run(name, func(t *testing.T) {
			now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
			s := store(t, Config{now: func() time.Time { return now }})
			put(t, s, "a", "one")
			deleted, put := f(t, s, &now)
			if put.UnixMilli() <= deleted.UnixMilli() {
				t.Errorf("deleted at %v, and what came next is dated %v", deleted, put)
			}
			if put.Sub(now) > maxSkew {
				t.Errorf("dated %v, at %v", put, now)
			}
		})
	}
}

// After a clock that was ahead is corrected, new puts and deletes get the correct time.
func TestClockWasAhead(t *testing.T) {
	ctx := t.Context()
	for name, by := range map[string]time.Duration{"hours": 2 * time.Hour, "years": 10 * 365 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			right := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
			now := right.Add(by)
			s := store(t, Config{now: func() time.Time { return now }})
			put(t, s, "a", "one")
			now = right
			near := func(what string, at time.Time) {
				t.Helper()
				if at.Sub(now).Abs() > maxSkew {
					t.Errorf("%s is dated %v, at %v", what, at, now)
				}
			}
			near("a new item", put(t, s, "new", "two").Modified)
			near("a put over it", put(t, s, "new", "three").Modified)
			d, err := s.Delete(ctx, sp, "new", storage.DeleteOptions{})
			must(t, err)
			near("its delete", d.Time)
			_, err = s.Stat(ctx, sp, "new")
			var absent *storage.AbsentError
			if !errors.As(err, &absent) {
				t.Fatalf("Stat: got %v", err)
			}
			near("its absence", absent.At)
			near("a put after the delete", put(t, s, "new", "four").Modified)
		})
	}
}

// The time of a Put is not before that of an absence observed before its file was renamed.
func TestPutIsLaterThanLooks(t *testing.T) {
	absentAt := func(t *testing.T, s *Store) time.Time {
		t.Helper()
		_, err := s.Stat(t.Context(), sp, "a")
		var absent *storage.AbsentError
		if !errors.As(err, &absent) {
			t.Fatalf("Stat: got %v, want that it is absent", err)
		}
		return absent.At
	}
	eachLayout(t, "looks", func(t *testing.T, sidecars bool) {
		now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
		clock := func() time.Time { return now }
		tests := map[string]func(t *testing.T, s, other *Store) (seen time.Time){
			"of an item that never was": func(t *testing.T, s, other *Store) time.Time {
				w := began(t, s, "a")
				now = now.Add(50 * time.Millisecond)
				seen := absentAt(t, other)
				must(t, w.commit(t.Context()))
				return seen
			},
			"after an operator removed the file": func(t *testing.T, s, other *Store) time.Time {
				put(t, s, "a", "one")
				w := began(t, s, "a")
				must(t, os.Remove(filepath.Join(s.cfg.Root, sp, "a")))
				now = now.Add(50 * time.Millisecond)
				seen := absentAt(t, other)
				now = now.Add(time.Millisecond)
				must(t, w.commit(t.Context()))
				return seen
			},
			"after another program removed the file": func(t *testing.T, s, _ *Store) time.Time {
				put(t, s, "a", "one")
				w := began(t, s, "a")
				must(t, os.Remove(filepath.Join(s.cfg.Root, sp, "a")))
				now = now.Add(50 * time.Millisecond)
				must(t, w.commit(t.Context()))
				return now
			},
			"between its date and its rename": func(t *testing.T, s, other *Store) (seen time.Time) {
				s.cfg.step = func(done string) error {
					if done != "written" {
						return nil
					}
					now = now.Add(50 * time.Millisecond)
					ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
					defer cancel()
					_, err := other.Stat(ctx, sp, "a")
					var absent *storage.AbsentError
					if errors.As(err, &absent) {
						seen = absent.At
					} else if !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("Stat: got %v", err)
					}
					return nil
				}
				put(t, s, "a", "x")
				return seen
			},
		}
		for name, f := range tests {
			t.Run(name, func(t *testing.T) {
				s := store(t, Config{sidecars: sidecars, now: clock})
				seen := f(t, s, open(t, Config{Root: s.cfg.Root, now: clock}))
				if at := stat(t, s, "a").Modified; at.UnixMilli() < seen.UnixMilli() {
					t.Errorf("absent at %v, and put at %v", seen, at)
				}
			})
		}
	})
}

// If the time of a delete is too far ahead of the clock, changes are refused with the reason, and the item can be read.
// After the time is corrected the same calls work.
func TestDeletesFromAhead(t *testing.T) {
	ctx := t.Context()
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	s := store(t, Config{now: func() time.Time { return now }})
	ahead := func(by time.Duration) {
		p, err := newItemPath(sp, "a")
		must(t, err, s.sess.recordDelete(p, now.Add(by)))
	}
	put(t, s, "a", "one")
	ahead(maxSkew + time.Second)
	was := stat(t, s, "a")
	_, putErr := s.Put(ctx, sp, "a", strings.NewReader("x"), storage.PutOptions{Size: 1})
	_, delErr := s.Delete(ctx, sp, "a", storage.DeleteOptions{})
	for call, err := range map[string]error{"Put": putErr, "Delete": delErr} {
		if !retry.IsPermanent(err) || !storage.IsNotApplied(err) || !strings.Contains(err.Error(), "ahead of the clock") {
			t.Errorf("%s: got %v, want that the time is ahead, for good and not applied", call, err)
		}
	}
	if got, err := read(t, s, "a", was.Version); got != "one" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	ahead(maxSkew - time.Second)
	if got := put(t, s, "a", "two").Modified.Sub(now); got > maxSkew {
		t.Errorf("dated %v ahead", got)
	}
	_, err := s.Delete(ctx, sp, "a", storage.DeleteOptions{})
	must(t, err)
}

// On a file system that keeps no parts of seconds, an absence is dated by the whole second: a Put right after it would
// be dated before it.
func TestTimesOfSeconds(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 420e6, time.UTC)
	absent := func(s *Store) time.Time {
		_, err := s.Stat(t.Context(), sp, "absent")
		var e *storage.AbsentError
		if !errors.As(err, &e) {
			t.Fatalf("got %v", err)
		}
		return e.At
	}
	s := store(t, Config{now: func() time.Time { return now }})
	put(t, s, "a", "one")
	if at := absent(s); s.Capabilities().TimeResolution != time.Nanosecond || at.Truncate(time.Second).Equal(at) {
		t.Errorf("absent at %v, resolution %v", at, s.Capabilities().TimeResolution)
	}
	s.wholeSeconds.Store(true)
	if at := absent(s); s.Capabilities().TimeResolution != time.Second || !at.Equal(now.Truncate(time.Second)) {
		t.Errorf("absent at %v, resolution %v", at, s.Capabilities().TimeResolution)
	}
	p, err := newItemPath(sp, "absent")
	must(t, err, s.sess.recordDelete(p, now.Add(time.Minute)))
	if at := absent(s); !at.Equal(now.Add(time.Minute).Truncate(time.Second)) {
		t.Errorf("absent at %v after a delete ahead of the clock", at)
	}
}

// A date of a file is data: the item is read, replaced and deleted whatever it is, and what replaces it has the time of
// the clock.
func TestOddDatesOfFiles(t *testing.T) {
	ctx := t.Context()
	for name, at := range map[string]time.Time{
		"1965": time.Date(1965, 7, 13, 1, 2, 3, 0, time.UTC), "2106": time.Unix(1<<32-1, 0).UTC(),
		"2446": time.Date(2446, 5, 1, 0, 0, 0, 0, time.UTC),
	} {
		t.Run(name, func(t *testing.T) {
			s := store(t, Config{})
			dated := func() storage.Object {
				put(t, s, "a", "one")
				file := filepath.Join(s.cfg.Root, sp, "a")
				must(t, os.Chtimes(file, time.Time{}, at))
				if info, err := os.Stat(file); err != nil || !info.ModTime().Equal(at) {
					need.Missing(t, need.Kernel("a file system that keeps "+at.String()), err)
				}
				return stat(t, s, "a")
			}
			o := dated()
			if !o.Modified.Equal(at) {
				t.Errorf("dated %v, want %v", o.Modified, at)
			}
			plain, err := OpenPlain(PlainConfig{ID: "1", Root: s.cfg.Root, Expect: sp + "/a"})
			must(t, err)
			if o, err := plain.Stat(ctx, sp, "a"); err != nil || !o.Modified.Equal(at) {
				t.Errorf("plain: dated %v (%v), want %v", o.Modified, err, at)
			}
			if got, err := read(t, s, "a", o.Version); got != "one" || err != nil {
				t.Errorf("got %q, %v", got, err)
			}
			if got := put(t, s, "a", "two"); time.Since(got.Modified).Abs() > time.Hour {
				t.Errorf("replaced at %v", got.Modified)
			}
			dated()
			if d, err := s.Delete(ctx, sp, "a", storage.DeleteOptions{}); err != nil || time.Since(d.Time).Abs() > time.Hour {
				t.Errorf("deleted at %v (%v)", d.Time, err)
			}
		})
	}
}

// The error of a mutation is marked with NotApplied if it occurs before the first visible step, and only then.
func TestNotAppliedMark(t *testing.T) {
	ctx := t.Context()
	s := store(t, Config{})
	a := put(t, s, "a", "one")
	put(t, s, "d/below", "x")
	opts := storage.PutOptions{Size: storage.UnknownSize}
	wrong := opts
	wrong.Condition.Version = "1"
	absent := opts
	absent.Condition.Absent = true
	_, putErr := s.Put(ctx, sp, "a", strings.NewReader(""), wrong)
	_, absentErr := s.Put(ctx, sp, "a", strings.NewReader(""), absent)
	_, nameErr := s.Put(ctx, sp, "\xff", strings.NewReader(""), opts)
	_, brokenErr := s.Put(ctx, sp, "a", iotestErr{}, opts)
	_, sizeErr := s.Put(ctx, sp, "a", strings.NewReader("x"), storage.PutOptions{Size: 2})
	_, setErr := s.SetProperties(ctx, sp, "none", storage.Properties{}, storage.Condition{})
	_, setVersion := s.SetProperties(ctx, sp, "a", storage.Properties{}, wrong.Condition)
	_, delErr := s.Delete(ctx, sp, "none", storage.DeleteOptions{})
	_, delVersion := s.Delete(ctx, sp, "a", storage.DeleteOptions{Condition: wrong.Condition})
	for call, err := range map[string]error{
		"Put, changed": putErr, "Put, exists": absentErr, "Put, name": nameErr, "Put, broken": brokenErr,
		"Put, size":             sizeErr,
		"SetProperties, absent": setErr, "SetProperties, changed": setVersion, "Delete, absent": delErr,
		"Delete, changed":     delVersion,
		"CreateSpace, exists": s.CreateSpace(ctx, storage.Space{Name: sp}),
		"CreateSpace, name":   s.CreateSpace(ctx, storage.Space{Name: ""}),
		"SetSpace, absent":    s.SetSpace(ctx, storage.Space{Name: "none"}),
		"DeleteSpace, absent": s.DeleteSpace(ctx, "none"), "DeleteSpace, not empty": s.DeleteSpace(ctx, sp),
	} {
		if !storage.IsNotApplied(err) {
			t.Errorf("%s: got %v, want it marked", call, err)
		}
	}
	if got := stat(t, s, "a"); got.Version != a.Version {
		t.Errorf("got %+v, want %+v", got, a)
	}
}

// If the file system becomes read-only after the first visible step, the error is ErrReadOnly without the NotApplied
// mark.
func TestReadOnlyAfterTheFirstStep(t *testing.T) {
	ctx := t.Context()
	for name, call := range map[string]func(s *Store) error{
		"Delete": func(s *Store) error {
			_, err := s.Delete(ctx, sp, "a", storage.DeleteOptions{})
			return err
		},
		"Delete, keeping": func(s *Store) error {
			_, err := s.Delete(ctx, sp, "a", storage.DeleteOptions{KeepDeleted: true})
			return err
		},
		"Put": func(s *Store) error {
			_, err := s.Put(ctx, sp, "a", strings.NewReader("new"), storage.PutOptions{Size: 3})
			return err
		},
		"Put, keeping": func(s *Store) error {
			_, err := s.Put(ctx, sp, "a", strings.NewReader("new"), storage.PutOptions{Size: 3, KeepReplaced: true})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := store(t, Config{})
			put(t, s, "a", "old")
			was := stat(t, s, "a")
			s.cfg.step = func(done string) error {
				if done == "moved" || done == "removed" {
					return pathError("test", "a", unix.EROFS)
				}
				return nil
			}
			err := call(s)
			if !errors.Is(err, storage.ErrReadOnly) || storage.IsNotApplied(err) {
				t.Errorf("got %v, want ErrReadOnly, which leaves open what was done", err)
			}
			if got, err := s.Stat(ctx, sp, "a"); err == nil && got.Version == was.Version {
				t.Errorf("it was not applied: %+v", got)
			}
		})
	}
}
