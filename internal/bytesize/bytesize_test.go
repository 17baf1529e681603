package bytesize

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/need"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]int64{
		"0B": 0, "7B": 7, "1.5KiB": 1536, "200MB": 200e6, "5 GiB": 5 << 30, "1kB": 1000, "1KB": 1000,
		"": -1, "5": -1, "5gib": -1, "-5GiB": -1, "GiB": -1, "1.0001B": -1, "9999999TiB": -1, "1..2B": -1, "1e3B": -1,
	} {
		t.Run(text, func(t *testing.T) {
			got, err := Parse(text)
			if want == -1 && !errors.Is(err, ErrSyntax) || want != -1 && (err != nil || got != want) {
				t.Errorf("got %d, %v, want %d", got, err, want)
			}
		})
	}
}

func TestFormatIsParsed(t *testing.T) {
	need.Check(t, func(t *rapid.T) {
		size := rapid.Int64Range(0, 1<<50).Draw(t, "size")
		if got, err := Parse(Format(size)); err != nil || got != size {
			t.Fatalf("%s: got %d, %v, want %d", Format(size), got, err, size)
		}
	})
}
