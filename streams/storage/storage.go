// Package storage is how millrace sees the places where items are kept: a Store of
// spaces of items.
//
// A Store never guesses: an item is there, is absent (ErrNotFound), or the answer is
// an error, and an error is not a fact. Writes become visible whole or not at all, and
// may be made conditional on what was seen before. Drivers are in the packages
// below; every driver and decorator passes storagetest.
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
// Errors wrap the sentinels of this package where a caller may branch on them; any
// other error means that the store did not answer. The error of a call that ends with its
// context is that of Ended.
type Store interface {
	// Capabilities says what the store can do; it does not change and asks nobody.
	Capabilities() Capabilities

	// Spaces lists the store's spaces, sorted by the bytes of their names.
	Spaces(ctx context.Context) iter.Seq2[string, error]
	// StatSpace returns ErrNoSpace where the space is absent.
	StatSpace(ctx context.Context, space string) (Space, error)
	// CreateSpace returns ErrExists where the space is present.
	CreateSpace(ctx context.Context, space Space) error
	// SetSpace replaces the properties and ACL of a space.
	SetSpace(ctx context.Context, space Space) error
	// DeleteSpace returns ErrNotEmpty where the space holds an item.
	DeleteSpace(ctx context.Context, space string) error

	// List lists the items of a space whose ids are greater than after, sorted by
	// their bytes, as Stat returns them; but digests, properties and Original may be left out.
	// After an error the listing ends; what was not listed is then unknown, not absent.
	List(ctx context.Context, space, after string) iter.Seq2[Object, error]
	// Stat returns ErrNotFound where the item is absent and ErrNoSpace where its space is, in an *AbsentError.
	Stat(ctx context.Context, space, item string) (Object, error)
	// Open opens the item's bytes. With a version the object that is read is of that
	// version or the error is ErrChanged, also when it changes while it is read. The Object
	// tells what is read.
	Open(ctx context.Context, space, item, version string) (io.ReadCloser, Object, error)
	// Put stores the bytes of r until EOF under the item's id, all of them or none:
	// they become visible only when they agree with PutOptions.Digests and Size, and
	// the condition holds. It reads to EOF and returns what is stored now, with the
	// digests of the bytes it wrote.
	Put(ctx context.Context, space, item string, r io.Reader, o PutOptions) (Object, error)
	// SetProperties replaces the user's properties and media type, leaving the bytes alone; ErrUnsupported if
	// Capabilities.SetProperties is false.
	SetProperties(ctx context.Context, space, item string, p Properties, c Condition) (Object, error)
	// Delete removes an item; ErrNotFound where it is absent.
	Delete(ctx context.Context, space, item string, o DeleteOptions) (Deleted, error)

	// Marker reads the store's marker, which carries the store's id. ErrNoMarker or
	// ErrWrongMarker means that this is not the store it should be: whatever it
	// lacks is unknown, not absent.
	Marker(ctx context.Context) error
	// WriteMarker makes the store known as id; ErrExists where it carries another id.
	WriteMarker(ctx context.Context) error
}

// A Space is a named set of items in one store.
type Space struct {
	Name       string
	Properties map[string]string
	ACL        map[string]string // grantee to rights
}

// Properties are what a user may say about an item.
type Properties struct {
	MediaType string
	User      map[string]string
}

// An Object is what a store tells of one item.
type Object struct {
	Item     string
	Size     int64     // bytes
	Modified time.Time // by the store's clock, in Capabilities.TimeResolution
	// Version pins these very bytes; never empty.
	Version string
	ETag    string
	// Digests are those that the store itself reports (evidence S); empty where it
	// has none, or none that can be about these bytes.
	Digests digest.Set
	// Original is what PutOptions.Original said of these bytes; zero if the store does not
	// have it, or cannot say that it is about these bytes.
	Original   Original
	Properties Properties
	// PropertiesUnknown: the store cannot tell the item's properties, since they were lost, are damaged or were never
	// kept. Properties is then empty, which does not mean that the item has none.
	PropertiesUnknown bool
	// Seen is when Stat found it so, by the store's clock; zero: that is the machine's, or it was not Stat.
	Seen time.Time
}

// A Condition makes a write depend on what was seen before. The zero Condition always holds.
type Condition struct {
	// Absent: the item must be absent, else ErrExists.
	Absent bool
	// Version: the item must be present in this version, else ErrChanged (ErrNotFound where absent).
	Version string
}

// PutOptions are how a Put is made.
type PutOptions struct {
	Condition
	Properties Properties
	// Digests that the bytes must have; else ErrDigest, and nothing is visible.
	// Those of algorithms that the store does not compute are stored as told only
	// after those that it does have agreed.
	Digests digest.Set
	// Compute names further algorithms whose digests Put returns and, where it can, stores.
	Compute []string
	// Size that the bytes must have, where it is not negative; else ErrDigest. Use UnknownSize for none.
	Size int64
	// KeepReplaced keeps the bytes that are replaced, as a version or in quarantine.
	KeepReplaced bool
	// Source is where the bytes that are put lie already; nil: nobody says. A store whose Capabilities.SourceFrom says
	// so has its service copy them from there instead of sending them, as far as the service proves that they are those
	// that it was given to put. What is stored is never anything else.
	Source *Place
	// Original is kept with the item, through SetProperties too, as far as the store has room for it.
	Original Original
	// Verify, where it is set, is called with the digests of the streamed bytes before
	// they become visible; its error is returned and nothing is visible.
	Verify func(digest.Set, int64) error
}

// An Original is the content that a copy was made of. The zero Original is none.
type Original struct {
	Modified time.Time // by the clock of the store that it was in, UTC, in milliseconds
	Version  string
}

// UnknownSize is the PutOptions.Size of streams whose length nobody knows.
const UnknownSize = -1

// DeleteOptions are how a Delete is made.
type DeleteOptions struct {
	Condition
	// Keep keeps the deleted bytes, as a version or in quarantine.
	Keep bool
}

// Deleted is what a Delete did: what was there, and when it went, by the store's clock.
type Deleted struct {
	Object Object
	Time   time.Time
}

// Capabilities are what a store can do, as data.
type Capabilities struct {
	Kind           string        // the driver's name
	TimeResolution time.Duration // of Modified and of deletes
	// ConditionalPut and ConditionalDelete: a Condition is looked at by the store in the very moment of
	// the write. Where they are false the driver looks first and writes then, so a Condition
	// that does not hold is refused all the same, but of two writers at once both may win.
	ConditionalPut    bool
	ConditionalDelete bool
	// UniqueVersions: no two writes of an item get the same version, also of the same
	// bytes. Elsewhere a version is a function of the bytes, as an ETag is.
	UniqueVersions bool
	KeepsReplaced  bool     // PutOptions.KeepReplaced and DeleteOptions.Keep work
	Digests        []string // algorithms that Put stores as evidence S
	// SetProperties: it works, and leaves bytes and version alone. Elsewhere it returns ErrUnsupported: an item gets other
	// properties by a Put of the same bytes.
	SetProperties     bool
	ReadOnly          bool
	FoldsPropertyCase bool  // property names have no case
	MaxItemBytes      int64 // 0: no bound; more is refused with ErrTooLarge
	SourceFrom        int64 // of so many bytes and more PutOptions.Source is of use, where it is of the same Kind; 0: never
	// MaxPropertyBytes bounds the names and values of an item's properties together, in bytes of
	// UTF-8; 0: no bound. More is refused with ErrTooLarge, never cut. Less may be refused
	// so too, where the store needs room of its own; half of it, in ASCII, is always kept.
	MaxPropertyBytes int
}
