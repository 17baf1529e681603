package outbox

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// manyOf makes an outbox whose records take several pages, and returns its directory, database and content.
func manyOf(t *testing.T, mutations int) (dir string, b []byte, content []string) {
	t.Helper()
	dir = t.TempDir()
	f := open(t, dir)
	for i := range mutations {
		ticket := intend(t, f, fmt.Sprint(i))
		switch i % 4 {
		case 1:
			must(t, f.Content(ticket, Content{Size: int64(i)}))
		case 2:
			_, err := f.Outcome(ticket, changeOf(fmt.Sprint(i), int64(i)))
			must(t, err)
		case 3:
			must(t, f.Done(ticket))
		}
	}
	content = state(t, f)
	must(t, f.Close())
	b, err := os.ReadFile(databaseName(dir))
	must(t, err)
	return dir, b, content
}

// readable returns the content of a database that can be read.
func readable(t *testing.T, dir string) (found verification, content []string) {
	t.Helper()
	found, err := verify(dir, func(_ []byte, m Mutation) error {
		content = append(content, text(m))
		return nil
	})
	must(t, err)
	return found, content
}

// A byte that has changed anywhere in the database is reported, unless it is in no use, and no record is changed or
// lost silently. Inspect reports what Salvage loses, and the salvaged outbox can be used.
func TestDamageAtEveryByte(t *testing.T) {
	for _, n := range []int{1, 60} {
		t.Run(fmt.Sprint(n, " mutations"), func(t *testing.T) {
			dir, b, want := manyOf(t, n)
			if _, got := readable(t, dir); !slices.Equal(got, want) {
				t.Fatalf("undamaged: got %q, want %q", got, want)
			}
			file, err := os.OpenFile(databaseName(dir), os.O_RDWR, 0)
			must(t, err)
			defer file.Close()
			damaged, salvaged := 0, 0
			for at := range min(len(b), 40*pageBytes) {
				flip := byte(1) << (at % 8)
				if at%pageBytes > 256 && at%5 > 0 { // headers at every byte
					continue
				}
				_, err := file.WriteAt([]byte{b[at] ^ flip}, int64(at))
				must(t, err)
				content := []string{}
				found, err := verify(dir, func(_ []byte, m Mutation) error {
					content = append(content, text(m))
					return nil
				})
				switch {
				case errors.Is(err, ErrFormat):
				case err != nil:
					t.Fatalf("byte %d: %v", at, err)
				case len(found.damage) == 0 && !slices.Equal(content, want):
					t.Fatalf("byte %d: not reported: got %q, want %q", at, content, want)
				case len(found.damage) > 0 && found.damage[0].Page < 2: // the transaction before
				case slices.ContainsFunc(content, func(s string) bool { return !slices.Contains(want, s) }):
					t.Fatalf("byte %d: got %q, want some of %q", at, content, want)
				case found.lost > 0 && len(content)+int(found.lost) != len(want):
					t.Fatalf("byte %d: %d can be read and %d are lost, of %d", at, len(content), found.lost, len(want))
				}
				if err == nil && len(found.damage) > 0 {
					damaged++
				}
				if damaged%97 == 1 && len(found.damage) > 0 {
					salvaged++
					salvages(t, dir, content)
				}
				_, err = file.WriteAt(b[at:at+1], int64(at))
				must(t, err)
			}
			if damaged < 100 || salvaged == 0 {
				t.Errorf("%d bytes were damage, and %d salvaged", damaged, salvaged)
			}
		})
	}
}

// salvages salvages a copy of an outbox, and compares the content.
func salvages(t *testing.T, dir string, want []string) {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	must(t, os.CopyFS(to, os.DirFS(dir)))
	if _, err := Open(Config{Dir: to}); !errors.Is(err, ErrDamaged) {
		t.Errorf("opened damaged: %v", err)
	}
	in, err := Salvage(t.Context(), to)
	must(t, err)
	if in.Pending != len(want) || len(in.Damage) == 0 {
		t.Errorf("got %+v, want %d mutations and damage", in, len(want))
	}
	f := open(t, to)
	if got := state(t, f); !slices.Equal(got, want) {
		t.Errorf("salvaged: got %q, want %q", got, want)
	}
	for h := range f.Held() {
		must(t, f.Done(h.Ticket))
	}
	intend(t, f, "after")
	must(t, f.Close())
	if again, err := Salvage(t.Context(), to); err != nil || len(again.Damage) > 0 || again.Pending != 1 {
		t.Errorf("again: got %+v, %v, want it sound", again, err)
	}
}

// A file that is cut is reported, wherever it ends, and so are other files, and pages of an older transaction.
func TestOtherDamage(t *testing.T) {
	dir, b, want := manyOf(t, 60)
	name := databaseName(dir)
	high := int(max(binary.NativeEndian.Uint64(b[pageHeaderBytes+40:]),
		binary.NativeEndian.Uint64(b[pageBytes+pageHeaderBytes+40:]))) * pageBytes
	for cut := 0; cut < high-pageBytes; cut += pageBytes / 2 {
		must(t, os.WriteFile(name, b[:cut], 0o600))
		found, got := readable(t, dir)
		if len(found.damage) == 0 && !slices.Equal(got, want) {
			t.Errorf("cut at byte %d: %d mutations, and no damage", cut, len(got))
		}
	}
	must(t, os.WriteFile(name, []byte(strings.Repeat("what is this", 1000)), 0o600))
	if _, err := Open(Config{Dir: dir}); !errors.Is(err, ErrDamaged) {
		t.Errorf("something else: %v", err)
	}
	for name, tt := range map[string]struct {
		make func(t *testing.T, dir string)
		want error
	}{
		"segments of an older build": {func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, "0000000000000001.segment"), nil, 0o600))
		}, ErrFormat},
		"another format": {func(t *testing.T, dir string) {
			db, err := openDatabase(databaseName(dir), true)
			must(t, err)
			must(t, db.Update(func(tx *bolt.Tx) error {
				_, err := tx.CreateBucket([]byte("millrace outbox 3"))
				return err
			}))
			must(t, db.Close())
		}, ErrFormat},
		"another database": {func(t *testing.T, dir string) {
			db, err := openDatabase(databaseName(dir), true)
			must(t, err)
			must(t, db.Update(func(tx *bolt.Tx) error {
				_, err := tx.CreateBucket([]byte("x"))
				return err
			}))
			must(t, db.Close())
		}, ErrDamaged},
		"an older meta page": {func(t *testing.T, dir string) {
			f := open(t, dir)
			was, err := os.ReadFile(databaseName(dir))
			must(t, err)
			intend(t, f, "a")
			intend(t, f, "b")
			must(t, f.Close())
			is, err := os.ReadFile(databaseName(dir))
			must(t, err)
			copy(is, was[:2*pageBytes])
			copy(is[pageBytes:], is[:pageBytes])
			must(t, os.WriteFile(databaseName(dir), is, 0o600))
		}, ErrDamaged},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			tt.make(t, dir)
			if _, err := Open(Config{Dir: dir}); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

// Damage that appears while the outbox is open fails the reads that meet it.
func TestDamagedWhileOpen(t *testing.T) {
	dir, b, _ := manyOf(t, 60)
	f := open(t, dir)
	for at := 2 * pageBytes; at < len(b); at += pageBytes {
		clear(b[at : at+pageBytes])
	}
	must(t, os.WriteFile(databaseName(dir), b, 0o600))
	if _, err := f.Read(1); !errors.Is(err, ErrDamaged) {
		t.Errorf("Read: got %v", err)
	}
}

// Inspect refuses a directory that is no outbox, and one in use; it creates nothing.
func TestInspectDirectories(t *testing.T) {
	for name, tt := range map[string]struct {
		make func(t *testing.T, dir string)
		want string // of the error
		held int
	}{
		"sound": {func(t *testing.T, dir string) {
			f := open(t, dir)
			intend(t, f, "a")
			must(t, f.Close())
		}, "", 1},
		"absent": {func(*testing.T, string) {}, "no such file or directory", 0},
		"empty":  {func(t *testing.T, dir string) { must(t, os.Mkdir(dir, 0o700)) }, "is no outbox", 0},
		"a file": {func(t *testing.T, dir string) { must(t, os.WriteFile(dir, []byte("x"), 0o600)) },
			"not a directory", 0},
		"something else": {func(t *testing.T, dir string) { must(t, os.CopyFS(dir, os.DirFS("."))) }, "is no outbox", 0},
		"in use":         {func(t *testing.T, dir string) { open(t, dir) }, "outbox is in use", 0},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "box")
			tt.make(t, dir)
			was := contents(t, filepath.Dir(dir))
			in, err := Inspect(t.Context(), dir)
			_, serr := Salvage(t.Context(), dir)
			for call, err := range map[string]error{"Inspect": err, "Salvage": serr} {
				if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
					t.Errorf("%s: got %v, want %q", call, err, tt.want)
				}
			}
			if in.Pending != tt.held || len(in.Damage) > 0 {
				t.Errorf("got %+v", in)
			}
			if got := contents(t, filepath.Dir(dir)); !maps.Equal(got, was) {
				t.Errorf("it was written to: got %v, was %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(was)))
			}
		})
	}
}

// contents returns the files below a directory, by name.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		all[strings.TrimPrefix(path, dir)] = string(b)
		return err
	}))
	return all
}

// damagedOutbox makes an outbox with a report and one unreadable record, that of ticket 2.
func damagedOutbox(t *testing.T) (dir string, want []string) {
	t.Helper()
	dir = t.TempDir()
	f := open(t, dir)
	for i := range 9 {
		intend(t, f, fmt.Sprint("item-", i))
	}
	must(t, f.Report(Mutation{Ticket: 1, Change: changeOf("z", 1)}, errors.New("no")))
	want = slices.Delete(state(t, f), 1, 2)
	must(t, f.Close())
	b, err := os.ReadFile(databaseName(dir))
	must(t, err)
	must(t, os.WriteFile(databaseName(dir), bytes.ReplaceAll(b, []byte("item-1"), []byte("item-x")), 0o600))
	return dir, want
}

// Salvage keeps the readable records, and the damaged database under another name.
func TestSalvage(t *testing.T) {
	dir, want := damagedOutbox(t)
	was := contents(t, dir)
	in, err := Salvage(t.Context(), dir)
	must(t, err)
	if in.Pending != len(want) || in.Lost != 1 || len(in.Damage) == 0 || len(in.Unknown) != len(want) ||
		in.Rejected != 1 {
		t.Fatalf("got %+v, want ticket 2 lost", in)
	}
	u, i := in.Unknown[0], intentOf("0")
	if want := (UnknownOutcome{1, "UPDATE", sp, "item-0", i.Began.UTC()}); u != want {
		t.Errorf("got %+v, want %+v", u, want)
	}
	is := contents(t, dir)
	if is["/"+damagedFile] != was["/"+databaseFile] {
		t.Error("the damaged database is not kept")
	}
	f := open(t, dir)
	if got := state(t, f); !slices.Equal(got, want) || f.Stats().Rejected != 1 {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	must(t, f.Close())
	must(t, os.WriteFile(databaseName(dir), []byte("x"), 0o600)) // a second damage
	_, err = Salvage(t.Context(), dir)
	must(t, err)
	if again := contents(t, dir); again["/"+damagedFile+".2"] != "x" || again["/"+damagedFile] != was["/"+databaseFile] {
		t.Error("the second damaged database is not kept")
	}
}

// A salvage that was interrupted before any of its steps can be repeated.
func TestSalvageInterrupted(t *testing.T) {
	dir, want := damagedOutbox(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	lock, err := lockDirectory(dir, true)
	must(t, err)
	if err := salvage(ctx, lock); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	must(t, keepDamaged(dir)) // as far as a process comes that is killed before it renames
	must(t, unlockDirectory(lock))
	_, err = Open(Config{Dir: dir})
	if !errors.Is(err, ErrDamaged) {
		t.Errorf("got %v", err)
	}
	_, err = Salvage(t.Context(), dir)
	must(t, err)
	if got := state(t, open(t, dir)); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
