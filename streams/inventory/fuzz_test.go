package inventory

import (
	"bytes"
	"errors"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/need"
)

// sane checks the invariants of the results of every parser.
func sane(t *testing.T, rows iter.Seq2[Entry, error], most int) {
	t.Helper()
	n, ended := 0, false
	for e, err := range rows {
		if ended {
			t.Fatal("a row after the end")
		}
		if n++; n > most {
			t.Fatalf("more than %d rows of so little", most)
		}
		var f *Fault
		switch {
		case errors.As(err, &f):
			if f.Reason == "" || f.At.File == "" {
				t.Fatalf("a fault that says too little: %+v", f)
			}
		case err != nil:
			ended = true
			if !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrFormat) {
				t.Fatalf("neither damaged nor unknown: %v", err)
			}
		default:
			if err := e.Digests.Validate(); err != nil || !utf8.ValidString(e.Item) || e.Size < -1 {
				t.Fatalf("a row that cannot be: %+v (%v)", e, err)
			}
		}
	}
}

func FuzzText(f *testing.F) {
	for _, s := range []string{
		emptyMD5 + "  a\n", `\` + emptyMD5 + ` *a\nb` + "\r\n", "SHA256 (a) = " + emptySHA256 + "\n", "path,size,md5\na,1," +
			emptyMD5 + "\n",
		"space-id\tcontent-id\tMD5\ns\tc\t" + emptyMD5 + "\n", emptyMD5 + " data/a%0A%25\n", "\xff\xfea\x00",
		zipped(emptyMD5 + "  a\n"), "\"a\n,\"\"", "key;size;mtime\na;1;2\n",
		s3Rows,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l := &Listing{path: "x", skipped: map[string]int64{}}
		b := &bag{version: "1.0"}
		for _, parse := range []func(*input) iter.Seq2[Entry, error]{
			func(in *input) iter.Seq2[Entry, error] { return sums(in, "") },
			func(in *input) iter.Seq2[Entry, error] { return l.table(in, true) },
			func(in *input) iter.Seq2[Entry, error] { return l.table(in, false) },
			l.duraCloud,
			func(in *input) iter.Seq2[Entry, error] { return manifestLines(in, "md5", b.version, true) },
		} {
			in, err := newInput("x", strings.NewReader(text), "")
			if err != nil {
				sane(t, failed(err), 1)
				continue
			}
			sane(t, parse(in), 1_100*(len(text)+2)) // gzip packs 1,032 bytes into one
		}
		recognise("x", []byte(text), false, Options{})
	})
}

func FuzzOCFL(f *testing.F) {
	inv, _ := ocflExample()
	f.Add([]byte(inv), "v2")
	f.Add([]byte(`{"digestAlgorithm": "md5", "head": "v1", "manifest": {}, "versions": {"v1": {}}}`), "")
	path := filepath.Join(f.TempDir(), "inventory.json")
	f.Fuzz(func(t *testing.T, data []byte, version string) {
		must(t, os.WriteFile(path, data, 0o600))
		for _, opts := range []Options{{Format: OCFL, Version: version}, {Format: OCFL, ContentPaths: true}} {
			l, err := Open(path, opts)
			must(t, err)
			sane(t, l.Entries(), len(data)+1)
		}
	})
}

// The output of the installed tools is read as their input.
func TestCoreutils(t *testing.T) {
	names := []string{"plain", "with space", " leading", "trailing ", "new\nline", "back\\slash", "carriage\rreturn",
		"*star", "-dash", "(1) = 2", "ü", "#hash"}
	all := map[string]string{}
	for _, n := range names {
		all[n] = n
	}
	dir := files(t, all)
	slices.Sort(names)
	for name, args := range map[string][]string{
		"sha256sum": {"sha256sum"}, "binary": {"md5sum", "--binary"}, "tag": {"sha1sum", "--tag"},
		"sha512sum": {"sha512sum", "--text"}, "openssl": {"openssl", "dgst", "-sha256"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath(args[0]); err != nil {
				need.Missing(t, need.Program(args[0]), err)
			}
			given := names
			if args[0] == "openssl" {
				given = []string{"plain", "with space", "(1) = 2"} // it escapes nothing
			} else {
				args = append(args, "--")
			}
			cmd := exec.CommandContext(t.Context(), args[0], append(args[1:], given...)...)
			cmd.Dir = dir
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v: %v", args, err)
			}
			in, err := newInput("x", bytes.NewReader(out), "")
			must(t, err)
			var got []string
			for e, err := range sums(in, "") {
				if err != nil {
					t.Errorf("%v in:\n%s", err, out)
				}
				got = append(got, e.Item)
			}
			if !slices.Equal(got, given) {
				t.Errorf("got  %q\nwant %q", got, given)
			}
		})
	}
}
