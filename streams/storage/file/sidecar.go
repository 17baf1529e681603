package file

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// A sidecar is what is kept beside an item: a small file in the tree of sidecars, under
// a hash of the item's id. It is written before the item's file takes its place, so it
// holds what is true of the new file and of the old one; the file's modification time
// says which holds.
type sidecar struct {
	Item string  `json:"item"`
	Now  aspect  `json:"now"`
	Was  *aspect `json:"was,omitempty"`
}

// An aspect is what is known of one content of an item.
type aspect struct {
	Modified  int64             `json:"modified"` // ns since 1970
	Size      int64             `json:"size"`     // for people; nothing depends on it
	Digests   digest.Set        `json:"digests,omitempty"`
	MediaType string            `json:"mediaType,omitempty"`
	User      map[string]string `json:"properties,omitempty"`
	Original  *original         `json:"original,omitempty"`
}

// An original is a storage.Original; nil is the zero one.
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

func (a aspect) properties() storage.Properties {
	return storage.Properties{MediaType: a.MediaType, User: a.User}
}

// shards is over how many directories the sidecars of a space are spread.
const shards = 64

func shardName(i byte) string { return fmt.Sprintf("%02x", i%shards) }

// sidecarPath returns the directory and path of an item's sidecar.
func sidecarPath(p place) (dir, path string) {
	sum := sha256.Sum256([]byte(p.item))
	dir = metaDir + "/" + p.space + "/" + shardName(sum[0])
	return dir, dir + "/" + hex.EncodeToString(sum[1:21]) + ".json"
}

// makeShards makes the directories of a space's sidecars, all at once.
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
	defer s.begin(meta)()
	for i := range byte(shards) {
		if err := unix.Mkdirat(fd, shardName(i), 0o777); err != nil && err != unix.EEXIST {
			return named("mkdir", meta, err)
		}
	}
	return fsync(fd, meta)
}

// errSpoilt is of a sidecar that was read and tells nothing of its item.
var errSpoilt = errors.New("sidecar is spoilt")

// readSidecar returns nil where there is none. One that cannot be read is an error:
// properties that are there must not be taken for none.
func (s *session) readSidecar(p place) (*sidecar, error) {
	_, path := sidecarPath(p)
	b, err := s.read(path)
	if isAbsent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var sc sidecar
	if err := json.Unmarshal(b, &sc); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errSpoilt, path, err)
	}
	if sc.Item != p.item {
		return nil, fmt.Errorf("%w: %s is of item %q", errSpoilt, path, sc.Item)
	}
	return &sc, nil
}

// oldSidecar is readSidecar for who replaces or removes it: one that is spoilt is as
// good as none. Of one that could not be read nothing is known, so it stays.
func (s *session) oldSidecar(p place) (*sidecar, error) {
	sc, err := s.readSidecar(p)
	if errors.Is(err, errSpoilt) {
		return nil, nil
	}
	return sc, err
}

// of returns what the sidecar, which may be nil, says of a file with this modification
// time. Of a file with a time that it does not know it only tells the properties.
func (sc *sidecar) of(modified int64) (a aspect, known bool) {
	switch {
	case sc == nil:
		return aspect{}, false
	case sc.Now.Modified == modified:
		return sc.Now, true
	case sc.Was != nil && sc.Was.Modified == modified:
		return *sc.Was, true
	}
	return aspect{MediaType: sc.Now.MediaType, User: sc.Now.User}, false
}

// writeOwn writes a small file of our own, whole or not at all, into a directory below
// ownDir that is there. Its name is on disk when the directory has been synced.
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
		return named("rename", path, t.move(fd, name, 0))
	})
}

// placeSidecar has a sidecar, which is on disk, take its place.
func (s *session) placeSidecar(p place, t *temp) (err error) {
	_, path := sidecarPath(p)
	for range maxTries {
		if err = s.moveTo(t, path); !isAbsent(err) || errors.Is(err, errRemoved) {
			return err
		}
		if err := s.makeShards(p.space); err != nil {
			return err
		}
	}
	return err
}

// setSidecar replaces a sidecar and returns when that is on disk.
func (s *session) setSidecar(p place, sc sidecar) error {
	dir, path := sidecarPath(p)
	b, err := json.Marshal(sc)
	if err != nil {
		return err
	}
	t, err := s.tempOf(b)
	if err != nil {
		return err
	}
	defer t.discard()
	if err := fsync(t.fd, path); err != nil {
		return err
	}
	if err := s.placeSidecar(p, t); err != nil {
		return err
	}
	return s.syncDir(dir)
}

func (s *session) removeSidecar(p place) error {
	_, path := sidecarPath(p)
	return s.unlink(path, 0)
}

// checkProperties refuses what the sidecar could not give back as it was.
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

func newAspect(st *unix.Stat_t, d digest.Set, p storage.Properties, of *original) aspect {
	return aspect{Modified: st.Mtim.Nano(), Size: st.Size, Digests: d, MediaType: p.MediaType, User: maps.Clone(p.User), Original: of}
}
