// Package storage defines the interface to storage providers: a Store has spaces, and a space has items.
//
// A Store never guesses: an item is present, or absent (ErrNotFound), or the answer is an error, and an
// error is not a fact. A write becomes visible completely or not at all, and can be made conditional on an
// earlier observation. The packages below are drivers and decorators; all of them pass storagetest.
package storage

import (
	"context"
	"io"
	"iter"
	"time"

	"github.com/millrace/millrace/streams/digest"
)

// A Store is one storage provider of an account. Its methods are safe for concurrent use.
//
// Errors wrap the sentinels of this package where a caller may branch on them; any other error means that
// the store did not answer. If a call ends because of its context, its error is that of ContextErr.
type Store interface {
	// Capabilities returns what the store can do. It is constant and sends no request.
	Capabilities() Capabilities

	// Spaces lists the store's spaces, sorted by the bytes of their names.
	Spaces(ctx context.Context) iter.Seq2[string, error]
	// StatSpace returns ErrNoSpace if the space is absent.
	StatSpace(ctx context.Context, space string) (Space, error)
	// CreateSpace returns ErrExists if the space is present.
	CreateSpace(ctx context.Context, space Space) error
	// SetSpace replaces the properties and ACL of a space.
	SetSpace(ctx context.Context, space Space) error
	// DeleteSpace returns ErrNotEmpty if the space contains an item.
	DeleteSpace(ctx context.Context, space string) error

	// List returns the items of a space with ids greater than after, sorted by the bytes of their ids. The
	// Objects are those of Stat, but digests, properties and Original may be missing. An error ends the
	// listing; the items after it are then unknown, not absent.
	List(ctx context.Context, space, after string) iter.Seq2[Object, error]
	// Stat returns ErrNotFound if the item is absent and ErrNoSpace if its space is, in an *AbsentError.
	Stat(ctx context.Context, space, item string) (Object, error)
	// Open opens the item's bytes. With a version, the bytes are those of that version or the error is
	// ErrChanged, also if the item changes during the read. The Object describes the bytes that are read.
	Open(ctx context.Context, space, item, version string) (io.ReadCloser, Object, error)
	// Put stores the bytes of r until EOF as the item: all of them, or nothing. They become visible only if
	// they match PutOptions.Digests and Size and the Condition holds. Put reads to EOF and returns the stored
	// Object, with the digests of the bytes that it wrote.
	Put(ctx context.Context, space, item string, r io.Reader, o PutOptions) (Object, error)
	// SetProperties replaces the user properties and the media type, and leaves the bytes unchanged;
	// ErrUnsupported if Capabilities.SetProperties is false.
	SetProperties(ctx context.Context, space, item string, p Properties, c Condition) (Object, error)
	// Delete removes an item; ErrNotFound if it is absent.
	Delete(ctx context.Context, space, item string, o DeleteOptions) (Deleted, error)

	// Marker checks the store's marker, which contains the store's id. ErrNoMarker or ErrWrongMarker means
	// that this is not the expected store: items missing from it are unknown, not absent.
	Marker(ctx context.Context) error
	// WriteMarker writes the store's id into the marker; ErrExists if there is a marker with another id.
	WriteMarker(ctx context.Context) error
}

// A Space is a named set of items in one store.
type Space struct {
	Name       string
	Properties map[string]string
	ACL        map[string]string // grantee to rights
	// PropertiesUnknown: the store has no record of the properties and the ACL, because it was lost, or another program
	// made the space. Both are then empty, which does not mean that the space has none. CreateSpace and SetSpace keep it.
	PropertiesUnknown bool
}

// Properties are a user's metadata of an item.
type Properties struct {
	MediaType string
	User      map[string]string
}

// An Object is a store's description of one item.
type Object struct {
	Item     string
	Size     int64     // bytes
	Modified time.Time // by the store's clock, in steps of Capabilities.TimeResolution
	// Changed is when a program has written to the item last, or changed its times, by the store's clock. Unlike Modified
	// no program can set it. It is zero if the store does not certainly know it, and in Objects that are not from List.
	Changed time.Time
	// Version identifies exactly these bytes; never empty.
	Version string
	ETag    string
	// Digests are those that the store itself reports (evidence S); empty if it has none, or none that are
	// certainly of these bytes.
	Digests digest.Set
	// Original is PutOptions.Original of these bytes; zero if the store does not have it, or it may be of
	// other bytes.
	Original   Original
	Properties Properties
	// PropertiesUnknown: the store does not know the item's properties, because they were lost, damaged or
	// never kept. Properties is then empty, which does not mean that the item has none.
	PropertiesUnknown bool
	// ObservedAt is when Stat observed the item, by the store's clock. It is zero if the store uses the machine's clock,
	// and in Objects that are not from Stat.
	ObservedAt time.Time
}

// A Condition makes a write depend on an earlier observation. The zero Condition always holds.
type Condition struct {
	// Absent: the item must be absent, else ErrExists.
	Absent bool
	// Version: the item must be present in this version, else ErrChanged (ErrNotFound if absent).
	Version string
}

// PutOptions are the options of a Put.
type PutOptions struct {
	Condition
	Properties Properties
	// Digests are those that the bytes must have, else ErrDigest and nothing becomes visible. Digests of algorithms
	// that the store does not compute are stored as declared, but only after those that it computes have matched.
	Digests digest.Set
	// Compute names further algorithms: Put returns their digests and stores them if the store can.
	Compute []string
	// Size is the required number of bytes, else ErrDigest; negative, as UnknownSize: any number.
	Size int64
	// KeepReplaced keeps the replaced bytes, as a version or in quarantine.
	KeepReplaced bool
	// Source is where the same bytes are stored already; nil: unknown. If Capabilities.MinSourceBytes
	// allows it, the store's service copies them from there instead of receiving them, provided that the
	// service proves them to be the bytes of the Put. No other bytes are ever stored.
	Source *Location
	// Original is kept with the item, also through SetProperties, as far as the store has room for it.
	Original Original
	// Verify, if not nil, is called with the digests and size of the stream before the bytes become visible.
	// If it fails, its error is returned and nothing becomes visible.
	Verify func(digest.Set, int64) error
}

// An Original identifies the content that a copy was made from. The zero Original means none.
type Original struct {
	Modified time.Time // by the clock of the source store, UTC, in milliseconds
	Version  string
}

// UnknownSize is the PutOptions.Size of streams of unknown length.
const UnknownSize = -1

// DeleteOptions are the options of a Delete.
type DeleteOptions struct {
	Condition
	// KeepDeleted keeps the deleted bytes, as a version or in quarantine.
	KeepDeleted bool
}

// Deleted is the result of a Delete: the removed Object, and the time by the store's clock.
type Deleted struct {
	Object Object
	Time   time.Time // not before Object.Modified, unless that is ahead of the clock
}

// Capabilities describe what a store can do.
type Capabilities struct {
	Kind           string        // the driver's name
	TimeResolution time.Duration // of Modified and of deletes
	// ConditionalPut and ConditionalDelete: the store checks a Condition atomically with the write. If false,
	// the driver checks first and then writes: a Condition that does not hold is refused too, but two
	// concurrent writers may both succeed.
	ConditionalPut    bool
	ConditionalDelete bool
	// UniqueVersions: no two writes of an item get the same version, even of the same bytes. Otherwise a
	// version is a function of the bytes, as an ETag is.
	UniqueVersions bool
	KeepsReplaced  bool     // PutOptions.KeepReplaced and DeleteOptions.KeepDeleted are supported
	Digests        []string // algorithms that Put stores as evidence S
	// SetProperties is supported, and leaves bytes and version unchanged. Otherwise it returns ErrUnsupported:
	// to change an item's properties, Put the same bytes again.
	SetProperties     bool
	ReadOnly          bool
	FoldsPropertyCase bool  // property names are case-insensitive
	MaxItemBytes      int64 // 0: unlimited; larger items are refused with ErrTooLarge
	MinSourceBytes    int64 // least size in bytes for which a PutOptions.Source of the same Kind is used; 0: never
	// MaxPropertyBytes bounds the names and values of an item's properties together, in bytes of UTF-8; 0:
	// unlimited. More is refused with ErrTooLarge, never truncated. Less may be refused too if the store needs
	// space of its own; half of it, in ASCII, is always accepted.
	MaxPropertyBytes int
}
