package file

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// A sidecar holds the metadata of an item with no attribute (attr.go). It is a small file below metaDir, named by a
// hash of the item's id. It is written before the item's file is renamed, so it holds the metadata of the new file and
// of the old one; the modification time of the file decides which one applies.
type sidecar struct {
	Item     string    `json:"item"`
	Current  metadata  `json:"now"`
	Previous *metadata `json:"was,omitempty"`
}

// metadata is what the store records about one content of an item.
type metadata struct {
	Modified  int64             `json:"modified"` // ns since 1970
	Size      int64             `json:"size"`     // informational; not used
	Digests   digest.Set        `json:"digests,omitempty"`
	MediaType string            `json:"mediaType,omitempty"`
	User      map[string]string `json:"properties,omitempty"`
	Original  *original         `json:"original,omitempty"`
	Unknown   bool              `json:"unknown,omitempty"` // the properties are unknown; MediaType and User are empty
}

// An original is a storage.Original in JSON. nil is the zero Original.
type original struct {
	Modified int64  `json:"modified"` // ms since 1970
	Version  string `json:"version"`
}

func newOriginal(o storage.Original) *original {
	if o == (storage.Original{}) {
		return nil
	}
	return &original{o.Modified.UnixMilli(), o.Version}
}

func (o *original) original() storage.Original {
	if o == nil {
		return storage.Original{}
	}
	return storage.Original{Modified: time.UnixMilli(o.Modified).UTC(), Version: o.Version}
}

func (a metadata) properties() storage.Properties {
	return storage.Properties{MediaType: a.MediaType, User: a.User}
}

// shards is the number of directories for the sidecars of one space.
const shards = 64

func shardName(i byte) string { return fmt.Sprintf("%02x", i%shards) }

// sidecarPath returns the directory and path of an item's sidecar.
func sidecarPath(p itemPath) (dir, path string) {
	sum := sha256.Sum256([]byte(p.item))
	dir = metaDir + "/" + p.space + "/" + shardName(sum[0])
	return dir, dir + "/" + hex.EncodeToString(sum[1:21]) + ".json"
}

// makeShards makes all sidecar directories of a space, with one sync.
func (s *session) makeShards(space string) error {
	meta := metaDir + "/" + space
	if err := s.mkdirs(ownDir, meta); err != nil {
		return err
	}
	fd, err := s.dir(meta)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	defer s.markPending(meta)()
	for i := range byte(shards) {
		if err := unix.Mkdirat(fd, shardName(i), 0o777); err != nil && err != unix.EEXIST {
			return pathError("mkdir", meta, err)
		}
	}
	return fsync(fd, meta)
}

// errSidecarDamaged means that a sidecar was read and cannot be decoded, or is of another item.
var errSidecarDamaged = errors.New("sidecar is damaged")

// crcField begins a sidecar: the CRC32C of all following bytes, in hex, as the first member of the JSON object.
const crcField = `{"crc":"`

const crcBytes = len(crcField) + 8

func (sc *sidecar) encode() ([]byte, error) {
	b, err := json.Marshal(sc)
	if err != nil {
		return nil, err
	}
	rest := `",` + string(b[1:])
	return fmt.Appendf(nil, "%s%08x%s", crcField, crc32.Checksum([]byte(rest), castagnoli), rest), nil
}

func decodeSidecar(item string, b []byte) (*sidecar, error) {
	if !bytes.HasPrefix(b, []byte(crcField)) || len(b) < crcBytes ||
		string(b[len(crcField):crcBytes]) != fmt.Sprintf("%08x", crc32.Checksum(b[crcBytes:], castagnoli)) {
		return nil, fmt.Errorf("%w: its CRC is wrong", errSidecarDamaged)
	}
	var sc sidecar
	if err := json.Unmarshal(b, &sc); err != nil {
		return nil, fmt.Errorf("%w: %w", errSidecarDamaged, err)
	}
	if item != "" && sc.Item != item {
		return nil, fmt.Errorf("%w: it is of item %q", errSidecarDamaged, sc.Item)
	}
	return &sc, nil
}

// readSidecar returns nil if there is none, and errSidecarDamaged if it cannot be decoded.
func (s *session) readSidecar(p itemPath) (*sidecar, error) {
	_, path := sidecarPath(p)
	b, err := s.read(path)
	if isAbsent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	sc, err := decodeSidecar(p.item, b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return sc, nil
}

// selectMetadata returns the metadata for a file with this modification time from its attribute and its sidecar. Each
// is nil if there is none; damaged is about the attribute. exact is false if neither is for this modification time.
func selectMetadata(modified int64, attr *metadata, damaged bool, sc *sidecar) (a metadata, exact bool) {
	switch {
	case attr != nil && attr.Modified == modified:
		return *attr, true
	case sc != nil && sc.Current.Modified == modified:
		return sc.Current, true
	case sc != nil && sc.Previous != nil && sc.Previous.Modified == modified:
		return *sc.Previous, true
	case attr != nil: // another program has changed the bytes
		return attr.propertiesOnly(), false
	case sc != nil && !damaged:
		return sc.Current.propertiesOnly(), false
	}
	return metadata{Unknown: true}, false
}

func (a *metadata) propertiesOnly() metadata {
	return metadata{MediaType: a.MediaType, User: a.User, Unknown: a.Unknown}
}

// readMetadata returns the metadata of an opened file of an item. exact is that of selectMetadata.
func (s *session) readMetadata(fd int, p itemPath, st *unix.Stat_t) (a metadata, exact bool, err error) {
	attr, err := readAttr(fd, p.item)
	damaged := errors.Is(err, errAttrDamaged)
	if err != nil && !damaged {
		return metadata{}, false, err
	}
	if attr != nil && attr.Modified == st.Mtim.Nano() {
		return *attr, true, nil
	}
	sc, err := s.readSidecar(p)
	if err != nil && !errors.Is(err, errSidecarDamaged) {
		return metadata{}, false, err
	}
	a, exact = selectMetadata(st.Mtim.Nano(), attr, damaged, sc)
	return a, exact, nil
}

// writeOwn writes a small file atomically into an existing directory below ownDir. Its name is durable after a sync of
// the directory.
func (s *session) writeOwn(path string, b []byte) error {
	t, err := s.tempOf(b)
	if err != nil {
		return err
	}
	defer t.discard()
	if err := fsync(t.fd, path); err != nil {
		return err
	}
	return s.moveTo(t, path)
}

func (s *session) moveTo(t *temp, path string) error {
	return s.within(path, func(fd int, name string) error {
		return pathError("rename", path, t.move(fd, name, 0))
	})
}

// installSidecar renames a synced temporary file to the sidecar's path.
func (s *session) installSidecar(p itemPath, t *temp) (err error) {
	_, path := sidecarPath(p)
	for range maxTries {
		if err = s.moveTo(t, path); !isAbsent(err) || errors.Is(err, errTempRemoved) {
			return err
		}
		if err := s.makeShards(p.space); err != nil {
			return err
		}
	}
	return err
}

// setSidecar replaces a sidecar durably.
func (s *session) setSidecar(p itemPath, sc sidecar) error {
	dir, _ := sidecarPath(p)
	t, err := s.sidecarTemp(sc)
	if err != nil {
		return err
	}
	defer t.discard()
	if err := fsync(t.fd, t.path()); err != nil {
		return err
	}
	if err := s.installSidecar(p, t); err != nil {
		return err
	}
	return s.syncDir(dir)
}

// sidecarTemp writes a sidecar to a temporary file. It does not sync.
func (s *session) sidecarTemp(sc sidecar) (*temp, error) {
	b, err := sc.encode()
	if err != nil {
		return nil, err
	}
	return s.tempOf(b)
}

func (s *session) removeSidecar(p itemPath) error {
	_, path := sidecarPath(p)
	return s.unlink(path, 0)
}

// checkProperties refuses properties that JSON would not preserve.
func checkProperties(p storage.Properties) error {
	ok := utf8.ValidString(p.MediaType)
	for k, v := range p.User {
		ok = ok && utf8.ValidString(k) && utf8.ValidString(v)
	}
	if !ok {
		return retry.Permanent(fmt.Errorf("properties that are not UTF-8: %w", storage.ErrUnsupported))
	}
	return nil
}

func newMetadata(st *unix.Stat_t, d digest.Set, p storage.Properties, of *original) metadata {
	return metadata{
		Modified: st.Mtim.Nano(), Size: st.Size, Digests: d,
		MediaType: p.MediaType, User: maps.Clone(p.User), Original: of,
	}
}
