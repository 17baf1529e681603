package sorted

import (
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/inventory"
)

const oneMD5 = "00112233445566778899aabbccddeeff"

// read reads listings with the given texts.
func read(t *testing.T, c Config, texts ...string) (*Listing, error) {
	t.Helper()
	for i, text := range texts {
		path := filepath.Join(t.TempDir(), fmt.Sprintf("listing-%d.txt", i))
		must(t, os.WriteFile(path, []byte(text), 0o600))
		in, err := inventory.Open(path, inventory.Options{})
		must(t, err)
		c.Listings = append(c.Listings, in)
	}
	c.Dir, c.Target.Account, c.Target.Store = t.TempDir(), "acme", "1"
	l, err := Read(t.Context(), c)
	if files, e := os.ReadDir(c.Dir); e != nil || len(files) > 0 {
		t.Errorf("temporary files %v, %v", files, e)
	}
	if err == nil {
		t.Cleanup(func() { _ = l.Close() })
	}
	return l, err
}

func items(t *testing.T, l *Listing, space, after string) (got []Item) {
	t.Helper()
	for i, err := range l.Items(space, after) {
		must(t, err)
		got = append(got, i)
	}
	return got
}

func names(all []Item) string {
	var b strings.Builder
	for _, i := range all {
		fmt.Fprintf(&b, "%s ", i.Name)
	}
	return strings.TrimSpace(b.String())
}

// Items are those of their space, in order, with what all listings show of them.
func TestRead(t *testing.T) {
	made := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	l, err := read(t, Config{Made: made},
		"key,space,size,modified,etag,version\n"+
			"b,photos,3,2026-01-01T00:00:00.25Z,\"\"\"e\"\"\",v1\n"+
			"a,photos,,,,\n"+
			"b,photos-2,1,,,\n"+
			"a/b,photos,4,,,\n"+
			"b,photos,3,2026-01-01T00:00:00.25Z,,\n",
		"key,space,md5\nb,photos,"+oneMD5+"\nB,maps,"+oneMD5+"\n")
	must(t, err)
	if got := strings.Join(l.Spaces(), " "); got != "maps photos photos-2" || l.Len() != 5 || !l.Made().Equal(made) {
		t.Errorf("spaces %q, %d items, made %v", got, l.Len(), l.Made())
	}
	want := []Item{{Name: "a", Size: -1}, {Name: "a/b", Size: 4}, {Name: "b", Size: 3,
		Time: time.Date(2026, 1, 1, 0, 0, 0, 250e6, time.UTC), Version: "v1", ETag: "e", Digests: digest.Set{"md5": oneMD5}}}
	if got := items(t, l, "photos", ""); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for after, want := range map[string]string{"a": "a/b b", "a/": "a/b b", "a/b": "b", "b": "", "c": ""} {
		if got := names(items(t, l, "photos", after)); got != want {
			t.Errorf("after %q: got %q, want %q", after, got, want)
		}
	}
	if got := names(items(t, l, "phot", "")) + names(items(t, l, "zoo", "")); got != "" {
		t.Errorf("spaces that are not listed: got %q", got)
	}
}

// A listing of several spaces can be read for one of them.
func TestReadOneSpace(t *testing.T) {
	target := inventory.Target{Space: "photos", Strip: "p/photos/", SkipOthers: true}
	rows := "key\np/maps/a\np/photos/b\np/photos/\\\np/photosets/c\n"
	l, err := read(t, Config{Target: target}, rows)
	must(t, err)
	if got := names(items(t, l, "photos", "")); got != `\ b` || l.Skipped()[skippedOther] != 2 {
		t.Errorf("got %q, skipped %v", got, l.Skipped())
	}
	target.Strip = "q/"
	if l, err := read(t, Config{Target: target}, rows); !errors.Is(err, inventory.ErrInvalid) {
		t.Errorf("nothing is left: got %v, %v", l, err)
	}
}

// Of an S3 Inventory only the latest versions count, a row without a time has none, and its files must be as it says.
func TestReadS3Inventory(t *testing.T) {
	rows := `"acme-photos","b","v2","true","false","3","e"` + "\n" +
		`"acme-photos","b","v1","false","false","2","d"` + "\n" +
		`"acme-photos","a%2Fc","v3","true","false","4","f"` + "\n" +
		`"acme-photos","gone","v4","true","true","",""` + "\n"
	dir := t.TempDir()
	open := func(rows string) *inventory.Listing {
		manifest := fmt.Sprintf(`{"sourceBucket":"acme-photos","creationTimestamp":"1767322800000","fileFormat":"CSV",`+
			`"fileSchema":"Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, ETag",`+
			`"files":[{"key":"data/1.csv","size":%d,"MD5checksum":"%x"}]}`, len(rows), md5.Sum([]byte(rows)))
		must(t, os.WriteFile(filepath.Join(dir, "manifest.json"), []byte(manifest), 0o600))
		in, err := inventory.Open(dir, inventory.Options{})
		must(t, err)
		return in
	}
	must(t, os.WriteFile(filepath.Join(dir, "1.csv"), []byte(rows), 0o600))
	l, err := Read(t.Context(), Config{Listings: []*inventory.Listing{open(rows)}, Dir: t.TempDir(),
		Target: inventory.Target{Account: "acme", Store: "1"}})
	must(t, err)
	defer l.Close()
	want := []Item{{Name: "a/c", Size: 4, Version: "v3", ETag: "f"}, {Name: "b", Size: 3, Version: "v2", ETag: "e"}}
	if got := items(t, l, "acme-photos", ""); !reflect.DeepEqual(got, want) || l.Made().Unix() != 1767322800 ||
		l.Skipped()["older versions"] != 1 || l.Skipped()["delete markers"] != 1 {
		t.Errorf("got %+v, want %+v; made %v, skipped %v", got, want, l.Made(), l.Skipped())
	}
	other := strings.Replace(rows, "v3", "v5", 1)
	_, err = Read(t.Context(), Config{Listings: []*inventory.Listing{open(other)}, Dir: t.TempDir()})
	if !errors.Is(err, inventory.ErrInvalid) || !strings.Contains(err.Error(), "md5") {
		t.Errorf("another MD5: %v", err)
	}
	_, err = Read(t.Context(), Config{Listings: []*inventory.Listing{open(rows + "x")}, Dir: t.TempDir()})
	if !errors.Is(err, inventory.ErrInvalid) || !strings.Contains(err.Error(), "the manifest says") {
		t.Errorf("another size: %v", err)
	}
	for _, format := range []string{"Parquet", "ORC"} {
		_, err := read(t, Config{}, fmt.Sprintf(`{"sourceBucket": "b", "fileFormat": %q, "files": []}`, format))
		if !errors.Is(err, inventory.ErrFormat) || !strings.Contains(err.Error(), "S3 Inventory to CSV") {
			t.Errorf("%s: %v", format, err)
		}
	}
}

// The ID is that of the rows and the time, not of the files.
func TestID(t *testing.T) {
	made := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	id := func(made time.Time, texts ...string) string {
		l, err := read(t, Config{Made: made, Target: inventory.Target{Space: "photos"}}, texts...)
		must(t, err)
		return l.ID()
	}
	first := id(made, "path,size\na,1\nb,2\n")
	for name, tt := range map[string]struct {
		id   string
		same bool
	}{
		"the same":      {id(made, "path,size\na,1\nb,2\n"), true},
		"another order": {id(made, "path,size\nb,2\na,1\na,1\n"), true},
		"two files":     {id(made, "path,size\nb,2\n", "path,size\na,1\n"), true},
		"another size":  {id(made, "path,size\na,1\nb,3\n"), false},
		"a row less":    {id(made, "path,size\na,1\n"), false},
		"another time":  {id(made.Add(time.Second), "path,size\na,1\nb,2\n"), false},
	} {
		if (tt.id == first) != tt.same {
			t.Errorf("%s: got %q, the first is %q", name, tt.id, first)
		}
	}
}

// A listing that is damaged, empty or faulty, or contradicts itself, is an error that says where.
func TestReadFails(t *testing.T) {
	for name, tt := range map[string]struct {
		text, want string
		invalid    bool
	}{
		"bad row":       {"path,size\na,1\nb,x\n", `listing-0.txt:3: "x" is not a size in bytes`, false},
		"bad path":      {"path,size\na,1\n../b,1\n", `listing-0.txt:3: "../b" is not a plain path`, false},
		"other row":     {"path,size\na,1\nb\n", "listing-0.txt:3: the row has 1 fields", false},
		"empty":         {"path,size\n", "lists nothing", true},
		"another size":  {"path,size\na,1\nb,2\na,2\n", `"a" of space "photos" is listed again, with another size`, true},
		"another time":  {"path,mtime\na,1\na,2\n", "with another time", true},
		"another md5":   {"path,md5\na," + oneMD5 + "\na," + strings.Repeat("0", 32) + "\n", "with another digest", true},
		"other version": {"path,version\na,1\na,2\n", "with another version", true},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := read(t, Config{Target: inventory.Target{Space: "photos"}}, tt.text)
			if err == nil || !strings.Contains(err.Error(), tt.want) || errors.Is(err, inventory.ErrInvalid) != tt.invalid {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if f := (*inventory.Fault)(nil); errors.As(err, &f) == tt.invalid {
				t.Errorf("a fault of %v", err)
			}
		})
	}
}

// A read that is cancelled leaves no file.
func TestReadIsCancelled(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "all.csv")
	must(t, os.WriteFile(path, []byte("path\n"+strings.Repeat("a\nb\n", 2000)), 0o600))
	in, err := inventory.Open(path, inventory.Options{})
	must(t, err)
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	cancel(stop)
	temp := t.TempDir()
	_, err = Read(ctx, Config{Listings: []*inventory.Listing{in}, Target: inventory.Target{Space: "photos"}, Dir: temp})
	if files, e := os.ReadDir(temp); !errors.Is(err, stop) || e != nil || len(files) > 0 {
		t.Errorf("got %v; files %v, %v", err, files, e)
	}
}
