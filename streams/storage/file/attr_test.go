package file

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
)

func metadataGenerator() *rapid.Generator[metadata] {
	return rapid.Custom(func(t *rapid.T) metadata {
		a := metadata{
			Modified: rapid.Int64().Draw(t, "modified"), Size: rapid.Int64Min(0).Draw(t, "size"),
			MediaType: rapid.String().Draw(t, "media type"),
		}
		user := rapid.MapOfN(rapid.String(), rapid.String(), 0, 4).Draw(t, "user")
		if len(user) > 0 {
			a.User = user
		}
		for _, alg := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{
			digest.MD5, digest.SHA1, digest.SHA256, digest.SHA512, digest.CRC64NVME, "blake3", "",
		}), 0, 7, rapid.ID).Draw(t, "algorithms") {
			if a.Digests == nil {
				a.Digests = digest.Set{}
			}
			n := digest.HexLen(alg)
			if n == 0 || rapid.IntRange(0, 9).Draw(t, "odd") == 0 {
				a.Digests[alg] = rapid.String().Draw(t, "digest")
				continue
			}
			a.Digests[alg] = rapid.StringOfN(rapid.RuneFrom([]rune("0123456789abcdef")), n, n, -1).Draw(t, "digest")
		}
		if rapid.Bool().Draw(t, "original") {
			a.Original = &original{rapid.Int64().Draw(t, "ms"), rapid.String().Draw(t, "version")}
		}
		return a
	})
}

// An encoded attribute decodes to the same metadata.
func TestAttrRoundTrip(t *testing.T) {
	need.Check(t, func(t *rapid.T) {
		want, item := metadataGenerator().Draw(t, "aspect"), rapid.String().Draw(t, "item")
		got, err := decodeAttr(item, encodeAttr(item, want))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v, %v, want %+v", got, err, want)
		}
	})
}

func fullMetadata() metadata {
	return metadata{
		Modified: 1795421447715647065, Size: 10 << 10, MediaType: "image/tiff",
		User:     map[string]string{"rights": "closed", "title": "é"},
		Digests:  digest.Set{digest.MD5: strings.Repeat("0a", 16), digest.SHA256: strings.Repeat("f1", 32), "blake3": "ab"},
		Original: &original{1795421447715, "v1"},
	}
}

// An Original is valid only for the item that it was written for; the other metadata moves with the file.
func TestAttrOfAnotherItem(t *testing.T) {
	want := fullMetadata()
	got, err := decodeAttr("b", encodeAttr("a", want))
	want.Original = nil
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

// A damaged byte, and an attribute that is too short or too long, is detected.
func TestAttrDamage(t *testing.T) {
	good := encodeAttr("a", fullMetadata())
	for i := range good {
		for bit := range 8 {
			bad := bytes.Clone(good)
			bad[i] ^= 1 << bit
			if a, err := decodeAttr("a", bad); !errors.Is(err, errAttrDamaged) {
				t.Errorf("bit %d of byte %d: got %+v, %v", bit, i, a, err)
			}
		}
		if a, err := decodeAttr("a", good[:i]); !errors.Is(err, errAttrDamaged) {
			t.Errorf("the first %d bytes: got %+v, %v", i, a, err)
		}
	}
	if a, err := decodeAttr("a", append(bytes.Clone(good), 0)); !errors.Is(err, errAttrDamaged) {
		t.Errorf("one byte more: got %+v, %v", a, err)
	}
}

// If any byte of an attribute is damaged, the bytes of the item can be read, digests and properties are unknown, and
// every call works. The next write replaces the attribute.
func TestDamagedAttrOnDisk(t *testing.T) {
	ctx := t.Context()
	s := store(t, Config{Root: inMemory(t)})
	put(t, s, "a", "bytes")
	path, err := s.Path(sp, "a")
	must(t, err)
	b := make([]byte, 4096)
	n, err := unix.Lgetxattr(path, attrName, b)
	if noAttr(err) {
		need.Missing(t, need.Kernel("extended attributes"), err)
	}
	must(t, err)
	for i := range n {
		bad := bytes.Clone(b[:n])
		bad[i] ^= 0x10
		must(t, unix.Lsetxattr(path, attrName, bad, 0))
		if got := stat(t, s, "a"); !got.PropertiesUnknown || len(got.Digests) > 0 || got.Properties.MediaType != "" {
			t.Fatalf("byte %d: got %+v, want that nothing is known", i, got)
		}
		if got, err := read(t, s, "a", ""); got != "bytes" || err != nil {
			t.Fatalf("byte %d: got %q, %v", i, got, err)
		}
	}
	o, err := s.SetProperties(ctx, sp, "a", storage.Properties{MediaType: "a/b"}, storage.Condition{})
	if got := stat(t, s, "a"); err != nil || o.PropertiesUnknown || got.PropertiesUnknown ||
		got.Properties.MediaType != "a/b" {
		t.Errorf("SetProperties: %v, got %+v", err, got)
	}
	must(t, unix.Lsetxattr(path, attrName, []byte("x"), 0))
	d, err := s.Delete(ctx, sp, "a", storage.DeleteOptions{})
	if err != nil || !d.Object.PropertiesUnknown {
		t.Errorf("Delete: %+v, %v", d, err)
	}
	put(t, s, "a", "again")
	must(t, unix.Lsetxattr(path, attrName, []byte("x"), 0))
	put(t, s, "a", "once more")
	if got := stat(t, s, "a"); got.PropertiesUnknown || len(got.Digests) == 0 {
		t.Errorf("Put: got %+v", got)
	}
}

// A damaged byte of a sidecar is detected, or does not change the decoded metadata.
func TestSidecarDamage(t *testing.T) {
	want := sidecar{Item: "a", Current: fullMetadata()}
	good, err := want.encode()
	must(t, err)
	if got, err := decodeSidecar("a", good); err != nil || !reflect.DeepEqual(*got, want) {
		t.Fatalf("got %+v, %v, want %+v", got, err, want)
	}
	for i := range good {
		for bit := range 8 {
			bad := bytes.Clone(good)
			bad[i] ^= 1 << bit
			if got, err := decodeSidecar("a", bad); !errors.Is(err, errSidecarDamaged) && !reflect.DeepEqual(*got, want) {
				t.Errorf("bit %d of byte %d: got %+v, %v", bit, i, got, err)
			}
		}
	}
}

func FuzzDecodeAttr(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(encodeAttr("a", metadata{}))
	f.Add(encodeAttr("a", fullMetadata()))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, b := range [][]byte{b, appendCRC(b)} {
			a, err := decodeAttr("a", b)
			if err != nil {
				continue
			}
			if again, err := decodeAttr("a", encodeAttr("a", a)); err != nil || !reflect.DeepEqual(again, a) {
				t.Errorf("%x is read as %+v, and that as %+v, %v", b, a, again, err)
			}
		}
	})
}
