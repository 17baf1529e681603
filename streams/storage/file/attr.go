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

// The attribute is the encoded metadata of a file. It moves with the file, is written before the file is
// synced, and is replaced as a whole. Integers are little-endian. Text is its length, as a uvarint, and its bytes.
//
//	1 byte    version of this encoding
//	1 byte    flags
//	8 bytes   modification time of the file that the metadata is for, ns since 1970
//	8 bytes   size of that file
//	uvarint   number of digests; for each the code of its algorithm and the digest, or code 0 and both as text
//	text      media type
//	uvarint   number of properties; for each name and value as text
//	if flagOriginal: 8 bytes time in ms, text version, 8 bytes hash of the item's id
//	4 bytes   CRC32C of all preceding bytes
const (
	attrName    = "user.millrace"
	attrVersion = 1

	flagOriginal = 1 << 1
)

// attrCodes are the algorithms with a code. The index is the code.
var attrCodes = [...]string{1: digest.MD5, 2: digest.SHA1, 3: digest.SHA256, 4: digest.SHA512, 5: digest.CRC64NVME}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// hashItem returns the hash that ties an Original to its item. Without it an attribute that a user moves or copies with
// its file would claim the Original for another item.
func hashItem(item string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(item)) // never fails
	return h.Sum64()
}

// encodeAttr encodes the metadata of an item's file as an attribute. The properties must be known.
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
		raw, err := hex.DecodeString(sum)
		if code > 0 && err == nil && len(sum) == digest.HexLen(alg) && hex.EncodeToString(raw) == sum {
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

// appendCRC appends the CRC32C of b.
func appendCRC(b []byte) []byte {
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// errAttrDamaged means that an attribute cannot be decoded.
var errAttrDamaged = errors.New("attribute is damaged")

// An attrReader decodes an attribute. After a failure its methods return zero values.
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

// count reads a number of entries or bytes. It fails if fewer bytes remain.
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

// decodeAttr decodes the attribute of an item's file.
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

// readAttr returns the metadata in the attribute of an opened file: nil if it has none, errAttrDamaged if the attribute
// is damaged.
func readAttr(fd int, item string) (*metadata, error) {
	var small [512]byte
	b := small[:]
	n, err := fgetxattr(fd, b)
	if errors.Is(err, unix.ERANGE) {
		b = make([]byte, 64<<10) // XATTR_SIZE_MAX of Linux
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

// noAttr reports whether an error means that a file has no attribute, or that its file system does not support them.
func noAttr(err error) bool { return errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EOPNOTSUPP) }

// writeAttr sets the attribute of an opened file. It does not sync. It returns false, and changes nothing, if the
// attribute is longer than the file system supports, or than limit if that is above 0.
func writeAttr(fd int, item string, a metadata, limit int) (bool, error) {
	b := encodeAttr(item, a)
	if limit > 0 && len(b) > limit {
		return false, nil
	}
	err := retryEINTR(func() error { return unix.Fsetxattr(fd, attrName, b, 0) })
	switch {
	case errors.Is(err, unix.E2BIG), errors.Is(err, unix.ERANGE),
		errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EOPNOTSUPP):
		// On a full disk the write of the sidecar fails too.
		return false, nil
	case err != nil:
		return false, fmt.Errorf("write attribute %s: %w", attrName, err)
	}
	return true, nil
}

// removeAttr removes the attribute of an opened file, if there is one. It does not sync.
func removeAttr(fd int) error {
	if err := retryEINTR(func() error { return unix.Fremovexattr(fd, attrName) }); err != nil && !noAttr(err) {
		return fmt.Errorf("remove attribute %s: %w", attrName, err)
	}
	return nil
}

// probeTimes reports whether the file system keeps no parts of seconds, as ext4 with small inodes. It dates an opened
// scratch directory.
func probeTimes(dir int) (wholeSeconds bool, err error) {
	var st unix.Stat_t
	times := []unix.Timeval{{Sec: 1, Usec: 500_000}, {Sec: 1, Usec: 500_000}}
	err = errors.Join(unix.Futimes(dir, times), unix.Fstat(dir, &st))
	return st.Mtim.Nsec == 0, pathError("date", scratchDir, err)
}

// probeAttrs reports whether the file system supports attributes. It sets one on an opened scratch directory.
func probeAttrs(dir int) (bool, error) {
	switch err := retryEINTR(func() error { return unix.Fsetxattr(dir, attrName, []byte{attrVersion}, 0) }); {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPERM):
		return false, nil
	default:
		return err == nil, pathError("set attribute", scratchDir, err)
	}
}
