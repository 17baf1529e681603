package file

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/streams/storage"
)

// Expire removes files that were in quarantine for long enough. Newer ones and files of other programs stay.
func TestExpire(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	s := open(t, Config{now: func() time.Time { return now }})
	ctx := t.Context()
	if done, err := s.Expire(ctx, storage.ExpireOptions{RetainedBefore: now}); err != nil || done != (storage.Expired{}) {
		t.Fatalf("where nothing was ever kept: %+v, %v", done, err)
	}
	put := func(item, text string) {
		t.Helper()
		if _, err := s.Put(ctx, "s", item, strings.NewReader(text),
			storage.PutOptions{Size: int64(len(text)), KeepReplaced: true}); err != nil {
			t.Fatal(err)
		}
	}
	must(t, s.CreateSpace(ctx, storage.Space{Name: "s"}))
	put("a", "one")
	put("a", "second") // quarantines the first
	put("b", "of b")
	now = now.Add(time.Hour)
	if _, err := s.Delete(ctx, "s", "b", storage.DeleteOptions{KeepDeleted: true}); err != nil {
		t.Fatal(err)
	}
	now = now.Add(48 * time.Hour)
	put("a", "third") // quarantines "second"
	theirs := filepath.Join(s.cfg.Root, quarantineDir, "2026-03-01", "theirs")
	must(t, os.Mkdir(theirs, 0o755))
	must(t, os.Mkdir(filepath.Join(s.cfg.Root, quarantineDir, "0-notes"), 0o755))
	expire := func(before time.Time, want storage.Expired, a, b string) {
		t.Helper()
		var reported storage.Expired
		done, err := s.Expire(ctx, storage.ExpireOptions{RetainedBefore: before, Each: func(more storage.Expired) {
			reported.Add(storage.ExpireOptions{}, more)
		}})
		if err != nil || done != want || reported != want {
			t.Errorf("before %v: %+v (reported %+v), %v, want %+v", before, done, reported, err, want)
		}
		for item, want := range map[string]string{"a": a, "b": b} {
			var got []string
			for _, text := range kept(t, s, "s", item) {
				got = append(got, string(text))
			}
			if strings.Join(got, ",") != want {
				t.Errorf("before %v: of %q is kept %q, want %q", before, item, got, want)
			}
		}
	}
	expire(time.Time{}, storage.Expired{}, "one,second", "of b")
	expire(time.Date(2026, 3, 1, 12, 30, 0, 0, time.UTC), storage.Expired{Retained: 1, Bytes: 3}, "second", "of b")
	ended, end := context.WithCancel(ctx)
	end()
	done, err := s.Expire(ended, storage.ExpireOptions{RetainedBefore: now.Add(time.Hour)})
	if !errors.Is(err, context.Canceled) || done != (storage.Expired{}) {
		t.Errorf("when it is to stop: %+v, %v", done, err)
	}
	expire(now.Add(-time.Hour), storage.Expired{Retained: 1, Bytes: 4}, "second", "")
	expire(now.Add(time.Hour), storage.Expired{Retained: 1, Bytes: 6}, "", "")
	left, err := filepath.Glob(filepath.Join(s.cfg.Root, quarantineDir, "*"))
	if err != nil || len(left) != 2 {
		t.Errorf("left are %q (%v), want the days of others", left, err)
	}
	if _, err := os.Stat(theirs); err != nil {
		t.Errorf("what others put there: %v", err)
	}
	r := open(t, Config{Root: s.cfg.Root, ReadOnly: true})
	if _, err := r.Expire(ctx, storage.ExpireOptions{RetainedBefore: now}); !errors.Is(err, storage.ErrReadOnly) {
		t.Errorf("read only: %v", err)
	}
}
