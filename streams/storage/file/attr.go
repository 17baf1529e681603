package file

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/digest"
)

// The attribute of layout 2 is an aspect, as bytes: it goes with the file, is written before the file is synced, and
// changes as a whole. Integers are little-endian; text is its length, as a uvarint, and its bytes.
//
//	1 byte    version of this form
//	1 byte    flags
//	8 bytes   modification time of the bytes that it speaks of, ns since 1970
//	8 bytes   their size
//	uvarint   digests: of each the code of its algorithm and the digest; with code 0 the names of both, as text
//	text      media type
//	uvarint   properties: of each name and value
//	if flagOriginal: 8 bytes time in ms, text version, 8 bytes hash of the item's id
//	4 bytes   CRC32C of all that is before it
const (
	attrName    = "user.millrace"
	attrVersion = 1

	flagOriginal = 1 << 1
)

// attrCodes are the algorithms that have a code, which is the index.
var attrCodes = [...]string{1: digest.MD5, 2: digest.SHA1, 3: digest.SHA256, 4: digest.SHA512, 5: digest.CRC64NVME}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// hashItem tells the item that an Original was written for from others: an attribute goes along when a person moves
// or copies its file.
func hashItem(item string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(item)) // never fails
	return h.Sum64()
}

// encodeAttr returns the attribute of an item's file, of which the properties are known.
func encodeAttr(item string, a metadata) []byte {
	b := make([]byte, 0, 192)
	text := func(s string) { b = append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	flags := byte(0)
	if a.Original != nil {
		flags |= flagOriginal
	}
	b = append(b, attrVersion, flags)
	b = binary.LittleEndian.AppendUint64(b, uint64(a.Modified))
	b = binary.LittleEndian.AppendUint64(b, uint64(a.Size))
	b = binary.AppendUvarint(b, uint64(len(a.Digests)))
	for _, alg := range a.Digests.Algorithms() {
		code, sum := slices.Index(attrCodes[:], alg), a.Digests[alg]
		if raw, err := hex.DecodeString(sum); code > 0 && err == nil && len(sum) == digest.HexLen(alg) && hex.EncodeToString(raw) == sum {
			b = append(append(b, byte(code)), raw...)
			continue
		}
		b = append(b, 0)
		text(alg)
		text(sum)
	}
	text(a.MediaType)
	b = binary.AppendUvarint(b, uint64(len(a.User)))
	for _, name := range slices.Sorted(maps.Keys(a.User)) {
		text(name)
		text(a.User[name])
	}
	if a.Original != nil {
		b = binary.LittleEndian.AppendUint64(b, uint64(a.Original.Modified))
		text(a.Original.Version)
		b = binary.LittleEndian.AppendUint64(b, hashItem(item))
	}
	return appendCRC(b)
}

// sealed appends the CRC.
func appendCRC(b []byte) []byte {
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// errAttr is of an attribute that says nothing.
var errAttrDamaged = errors.New("attribute is spoilt")

// An attrReader takes an attribute apart. After a fault all that it returns is zero.
type attrReader struct {
	b      []byte
	failed bool
}

func (r *attrReader) take(n uint64) []byte {
	if r.failed = r.failed || n > uint64(len(r.b)); r.failed {
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *attrReader) uint64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// count reads how many entries follow, each of which has a byte at least.
func (r *attrReader) count() uint64 {
	n, size := binary.Uvarint(r.b)
	if r.failed = r.failed || size <= 0 || n > uint64(len(r.b)-size); r.failed {
		return 0
	}
	r.b = r.b[size:]
	return n
}

func (r *attrReader) text() string { return string(r.take(r.count())) }

func (r *attrReader) digest() (alg, sum string) {
	code := r.take(1)
	switch {
	case r.failed:
	case code[0] == 0:
		return r.text(), r.text()
	case int(code[0]) < len(attrCodes):
		alg = attrCodes[code[0]]
		var text [128]byte
		return alg, string(text[:hex.Encode(text[:], r.take(uint64(digest.HexLen(alg)/2)))])
	}
	r.failed = true
	return "", ""
}

// decodeAttr reads the attribute of an item's file.
func decodeAttr(item string, b []byte) (a metadata, err error) {
	n := len(b) - 4
	if n < 2 || crc32.Checksum(b[:n], castagnoli) != binary.LittleEndian.Uint32(b[n:]) || b[0] != attrVersion {
		return metadata{}, errAttrDamaged
	}
	r, flags := &attrReader{b: b[2:n]}, b[1]
	a.Modified, a.Size = int64(r.uint64()), int64(r.uint64())
	if n := r.count(); n > 0 {
		a.Digests = make(digest.Set, n)
		for range n {
			alg, sum := r.digest()
			a.Digests[alg] = sum
		}
	}
	a.MediaType = r.text()
	if n := r.count(); n > 0 {
		a.User = make(map[string]string, n)
		for range n {
			name := r.text()
			a.User[name] = r.text()
		}
	}
	if flags&flagOriginal != 0 {
		o := original{Modified: int64(r.uint64()), Version: r.text()}
		if r.uint64() == hashItem(item) {
			a.Original = &o
		}
	}
	if r.failed || len(r.b) > 0 {
		return metadata{}, errAttrDamaged
	}
	return a, nil
}

// readAttr returns what the attribute of an opened file says: nil if it has none, errAttr if that is spoilt.
func readAttr(fd int, item string) (*metadata, error) {
	var small [512]byte
	b := small[:]
	n, err := fgetxattr(fd, b)
	if errors.Is(err, unix.ERANGE) {
		b = make([]byte, 64<<10) // no attribute of Linux is longer
		n, err = fgetxattr(fd, b)
	}
	switch {
	case noAttr(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read attribute %s: %w", attrName, err)
	}
	a, err := decodeAttr(item, b[:n])
	if err != nil {
		return nil, err
	}
	return &a, nil
}

func fgetxattr(fd int, b []byte) (n int, err error) {
	err = retryEINTR(func() error { n, err = unix.Fgetxattr(fd, attrName, b); return err })
	return n, err
}

// noAttr reports whether an error says that a file has no attribute, or that its file system has none.
func noAttr(err error) bool { return errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EOPNOTSUPP) }

// writeAttr gives an opened file its attribute; it is not synced. It returns false, and leaves the file as it was, if
// the attribute is longer than the file system takes, or than room, if that is not 0.
func writeAttr(fd int, item string, a metadata, room int) (bool, error) {
	b := encodeAttr(item, a)
	if room > 0 && len(b) > room {
		return false, nil
	}
	err := retryEINTR(func() error { return unix.Fsetxattr(fd, attrName, b, 0) })
	switch {
	case errors.Is(err, unix.E2BIG), errors.Is(err, unix.ERANGE), errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EOPNOTSUPP):
		// A disk that is full has no room for a sidecar either.
		return false, nil
	case err != nil:
		return false, fmt.Errorf("write attribute %s: %w", attrName, err)
	}
	return true, nil
}

// removeAttr removes the attribute of an opened file, if it has one; that is not synced.
func removeAttr(fd int) error {
	if err := retryEINTR(func() error { return unix.Fremovexattr(fd, attrName) }); err != nil && !noAttr(err) {
		return fmt.Errorf("remove attribute %s: %w", attrName, err)
	}
	return nil
}

// probeAttrs reports whether the file system of an opened directory of our own has attributes.
func probeAttrs(dir int) (bool, error) {
	switch err := retryEINTR(func() error { return unix.Fsetxattr(dir, attrName, []byte{attrVersion}, 0) }); {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPERM):
		return false, nil
	default:
		return err == nil, pathError("set attribute", scratchDir, err)
	}
}
