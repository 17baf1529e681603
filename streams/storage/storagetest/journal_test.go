package storagetest

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestJournal(t *testing.T) {
	name := filepath.Join(t.TempDir(), "journal")
	if got := ReadJournal[string](t, name, 0); len(got) > 0 {
		t.Errorf("got %q of a journal that is absent", got)
	}
	for i, want := range [][]string{{"one", "two"}, {"one", "two", "three"}, {"one", "two", "three", "four"}} {
		j, err := OpenJournal(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range want[len(ReadJournal[string](t, name, i)):] {
			if err := j.Add(line); err != nil {
				t.Fatal(err)
			}
		}
		if got := ReadJournal[string](t, name, i); !slices.Equal(got, want) {
			t.Fatalf("got %q after %d torn lines, want %q", got, i, want)
		}
		if _, err := j.f.WriteString(`"to`); err != nil { // a kill in the middle of a line
			t.Fatal(err)
		}
		if err := j.f.Close(); err != nil {
			t.Fatal(err)
		}
		if got := ReadJournal[string](t, name, i+1); !slices.Equal(got, want) {
			t.Fatalf("got %q with a torn end, want %q", got, want)
		}
	}
	if b, err := os.ReadFile(name); err != nil || string(b) != "\"one\"\n\"two\"\n\"to\n\"three\"\n\"to\n\"four\"\n\"to" {
		t.Errorf("the journal is %q, %v", b, err)
	}
}
