package integration

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/fixity"
)

// The states in which the incident of a damaged copy ends, in a store with repair: auto. In the primary store, what is
// closed here awaits approval.
const (
	isRepaired = pb.IncidentState_INCIDENT_STATE_CLOSED
	isAsked    = pb.IncidentState_INCIDENT_STATE_AWAITING_APPROVAL
	isOpen     = pb.IncidentState_INCIDENT_STATE_OPEN
)

// A wear is one way in which copies are damaged, and what checks and the steward make of it.
type wear struct {
	name   string
	row    fixity.Row
	kind   string // of the incident
	ends   pb.IncidentState
	of     history
	paired bool                           // it needs a second copy in the store, which is damaged alike
	file   func(*damagedWorld, hit)       // damages a file; nil: only objects are damaged so
	object func(*damagedWorld, hit)       // damages an object of S3; nil: only files are damaged so
	bytes  func(was, other []byte) []byte // or: only the bytes change
}

// A history is what clients have done with an item before its copy is damaged.
type history int

const (
	put       history = iota
	rewritten         // put again with other content
	deleted
)

// wears returns all ways.
func wears() []wear {
	corrupt := wear{row: fixity.RowContentCorrupt, kind: "content-corrupt", ends: isRepaired}
	bytesChange := func(name string, change func(was, other []byte) []byte) wear {
		w := corrupt
		w.name, w.bytes = name, change
		return w
	}
	swapped := bytesChange("bytes swapped", func(_, other []byte) []byte { return other })
	swapped.paired = true
	return []wear{
		bytesChange("a bit", func(b, _ []byte) []byte { b[len(b)/2] ^= 1; return b }),
		bytesChange("truncated", func(b, _ []byte) []byte { return b[:len(b)/2] }),
		bytesChange("extended", func(b, _ []byte) []byte { return append(b, 0) }),
		bytesChange("zeroed", func(b, _ []byte) []byte { clear(b[len(b)/4 : len(b)/2]); return b }),
		swapped,
		{name: "names swapped", row: fixity.RowReplaced, kind: "replaced", ends: isAsked, paired: true,
			file: (*damagedWorld).swapNames},
		{name: "old version", row: fixity.RowReplaced, kind: "replaced", ends: isAsked, of: rewritten,
			file: (*damagedWorld).bringFileBack, object: (*damagedWorld).removeNewestVersion},
		{name: "removed", row: fixity.RowContentMissing, kind: "content-missing", ends: isRepaired,
			file:   func(w *damagedWorld, h hit) { w.must(os.Remove(w.path(h.store, h.item))) },
			object: func(w *damagedWorld, h hit) { requestS3(w.t, w.s3, http.MethodDelete, w.key(h.item), nil) }},
		{name: "attribute altered", row: fixity.RowPass, kind: "metadata-damaged", ends: isRepaired,
			file: (*damagedWorld).alterAttribute},
		{name: "attribute lost", row: fixity.RowPass, kind: "metadata-damaged", ends: isRepaired,
			file: func(w *damagedWorld, h hit) { w.must(unix.Removexattr(w.path(h.store, h.item), fileAttribute)) }},
		{name: "checksum of the object altered", row: fixity.RowStoreDigestWrong, kind: "store-digest-wrong", ends: isOpen,
			object: (*damagedWorld).alterChecksum},
		{name: "metadata of the object altered", row: fixity.RowPass, kind: "metadata-damaged", ends: isRepaired,
			object: func(w *damagedWorld, h hit) { w.alterHeader(h, "X-Amz-Meta-By", "somebody") }},
		{name: "media type of the object altered", row: fixity.RowPass, kind: "metadata-damaged", ends: isRepaired,
			object: func(w *damagedWorld, h hit) { w.alterHeader(h, "Content-Type", "text/html") }},
		{name: "replaced", row: fixity.RowReplaced, kind: "replaced", ends: isAsked,
			file: func(w *damagedWorld, h hit) {
				w.must(os.Remove(w.path(h.store, h.item)))
				w.must(os.WriteFile(w.path(h.store, h.item), w.foreign(h.item), 0o644))
			},
			object: func(w *damagedWorld, h hit) { requestS3(w.t, w.s3, http.MethodPut, w.key(h.item), w.foreign(h.item)) }},
		{name: "resurrected", row: fixity.RowResurrected, kind: "resurrected", ends: isAsked, of: deleted,
			file: (*damagedWorld).bringFileBack,
			object: func(w *damagedWorld, h hit) {
				requestS3(w.t, w.s3, http.MethodPut, w.key(h.item), damagedContent(h.item, 1))
			}},
	}
}

// A hit is one damage of one copy. No item is damaged in two stores.
type hit struct {
	wear
	store, item string
	other       string // if paired: the item whose copy in the store is damaged with it
}

// planDamage selects the copies of each damage, each times in each store that can be damaged so. It is pure.
func planDamage(random *rand.Rand, items, each int) (all []hit, err error) {
	order := random.Perm(items)
	next := func() string {
		item := fmt.Sprintf("%05d", order[0])
		order = order[1:]
		return item
	}
	for _, way := range wears() {
		for _, store := range []string{"1", "2", objectStore} {
			if way.bytes == nil && (store == objectStore && way.object == nil || store != objectStore && way.file == nil) {
				continue
			}
			for range each {
				if len(order) < 2 {
					return nil, errors.New("there are too few items")
				}
				h := hit{wear: way, store: store, item: next()}
				if all = append(all, h); !way.paired {
					continue
				}
				h.other = next()
				all[len(all)-1].other = h.other
				all = append(all, hit{wear: way, store: store, item: h.other})
			}
		}
	}
	return all, nil
}

// state is the expected state of the incident.
func (h hit) state() pb.IncidentState {
	if h.ends == isRepaired && h.store == "1" {
		return isAsked
	}
	return h.ends
}

// damage does the damage of a hit. The second copy of a pair is damaged with the first.
func (w *damagedWorld) damage(h hit) {
	w.t.Helper()
	switch {
	case h.paired && h.other == "":
	case h.bytes != nil && h.paired:
		one, two := damagedContent(h.item, 1), damagedContent(h.other, 1)
		w.rot(h.store, h.item, func(b []byte) []byte { return h.bytes(b, two) })
		w.rot(h.store, h.other, func(b []byte) []byte { return h.bytes(b, one) })
	case h.bytes != nil:
		w.rot(h.store, h.item, func(b []byte) []byte { return h.bytes(b, nil) })
	case h.store == objectStore:
		h.object(w, h)
	default:
		h.file(w, h)
	}
}

func (w *damagedWorld) rot(store, item string, edit func([]byte) []byte) {
	w.t.Helper()
	if store == objectStore {
		w.s3.Rot(objectBucket, damagedSpace+"/"+item, edit)
		return
	}
	w.must(rotFile(w.path(store, item), edit))
}

// foreign is the content that another program writes.
func (w *damagedWorld) foreign(item string) []byte { return []byte("another program wrote " + item) }

// swapNames renames two files to each other's names.
func (w *damagedWorld) swapNames(h hit) {
	w.t.Helper()
	one, two := w.path(h.store, h.item), w.path(h.store, h.other)
	w.must(unix.Renameat2(unix.AT_FDCWD, one, unix.AT_FDCWD, two, unix.RENAME_EXCHANGE))
}

// keepFile keeps the present file of a copy for bringFileBack.
func (w *damagedWorld) keepFile(h hit) {
	w.t.Helper()
	w.must(os.Link(w.path(h.store, h.item), w.kept(h)))
}

func (w *damagedWorld) kept(h hit) string { return filepath.Join(w.backup, h.store+"-"+h.item) }

// bringFileBack restores the file that keepFile has kept, with its time and its attributes.
func (w *damagedWorld) bringFileBack(h hit) {
	w.t.Helper()
	w.must(os.Rename(w.kept(h), w.path(h.store, h.item)))
}

func (w *damagedWorld) removeNewestVersion(h hit) {
	w.t.Helper()
	o, err := w.store(h.store).Stat(w.t.Context(), damagedSpace, h.item)
	w.must(err)
	requestS3(w.t, w.s3, http.MethodDelete, w.key(h.item)+"?versionId="+o.Version, nil)
}

// fileAttribute is the name of the attribute of files in which file stores keep metadata.
const fileAttribute = "user.millrace"

// alterAttribute changes a byte of the attribute.
func (w *damagedWorld) alterAttribute(h hit) {
	w.t.Helper()
	b := make([]byte, 4096)
	n, err := unix.Getxattr(w.path(h.store, h.item), fileAttribute, b)
	w.must(err)
	b[n/2] ^= 1
	w.must(unix.Setxattr(w.path(h.store, h.item), fileAttribute, b[:n], unix.XATTR_REPLACE))
}

// alterChecksum changes the SHA-256 that the server has of an object.
func (w *damagedWorld) alterChecksum(h hit) {
	w.t.Helper()
	w.alterHeader(h, "X-Amz-Checksum-Sha256", base64.StdEncoding.EncodeToString(make([]byte, sha256.Size)))
}

// alterHeader changes a header that the server keeps with an object.
func (w *damagedWorld) alterHeader(h hit, name, value string) {
	w.t.Helper()
	w.s3.Edit(objectBucket, damagedSpace+"/"+h.item, func(header http.Header) { header.Set(name, value) })
}
