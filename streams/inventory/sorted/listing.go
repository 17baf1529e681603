// Package sorted reads the listings of one store in the order of their items, however many there are, in bounded
// memory.
//
// Read reads all rows before it returns: rows with a fault, a damaged or an empty listing, and rows that contradict
// each other are errors, so that no part of a listing is taken for all of it. The rows are in an unlinked temporary
// file, with about 30 bytes and the names of the space and the item for each, or in two while unsorted rows are merged.
package sorted

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"strings"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/inventory"
)

// Config configures Read.
type Config struct {
	Listings []*inventory.Listing
	// Target maps the rows to copies. Its Default, Now and User are not used.
	Target inventory.Target
	// Made is when the listings were made; zero: when the first of them was, by its own time.
	Made time.Time
	Dir  string // of the temporary files; empty: os.TempDir
	// Merged is called with the numbers of rows that were merged and are to be; nil: not called.
	Merged func(done, all int64)
}

// A Listing has the items of one store, sorted. Its methods are safe for concurrent use.
type Listing struct {
	account, store string
	made           time.Time
	file           *file
	spaces         []string
	skipped        map[string]int64
}

// An Item is what the listings show of a copy. Unknown fields are zero, and an unknown size is -1.
type Item struct {
	Name          string
	Size          int64
	Time          time.Time // of the content
	Version, ETag string
	Digests       digest.Set
}

// skippedOther is the kind of skipped rows without the prefix of Target.Strip.
const skippedOther = "items without the prefix"

// Read reads listings. A row with a fault is an error that wraps an *inventory.Fault. The caller closes the Listing.
func Read(ctx context.Context, c Config) (_ *Listing, err error) {
	l := &Listing{account: c.Target.Account, store: c.Target.Store, made: c.Made, skipped: map[string]int64{}}
	s := newSorter(c.Dir, join)
	defer func() { err = errors.Join(err, s.Close()) }()
	for _, in := range c.Listings {
		made, err := in.Made()
		if err != nil {
			return nil, err
		}
		if c.Made.IsZero() && (l.made.IsZero() || made.Before(l.made)) {
			l.made = made
		}
		if err := l.read(ctx, in, made, &c.Target, s); err != nil {
			return nil, err
		}
	}
	merged := c.Merged
	if merged == nil {
		merged = func(int64, int64) { /* not asked for */ }
	}
	if l.file, err = s.finish(ctx, merged); err != nil {
		return nil, err
	}
	if len(l.file.runs) == 0 {
		return nil, errors.Join(fmt.Errorf("%w: no row begins with %q, which is to be stripped", inventory.ErrInvalid,
			c.Target.Strip), l.Close())
	}
	if err := l.findSpaces(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// read adds the rows of one listing.
func (l *Listing) read(
	ctx context.Context, in *inventory.Listing, made time.Time, target *inventory.Target, s *sorter,
) error {
	var key, value []byte
	rows := 0
	for e, err := range in.Entries() {
		if rows++; rows%1000 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		at, err := target.Copy(e)
		if errors.Is(err, inventory.ErrOther) {
			l.skipped[skippedOther]++
			continue
		}
		if err != nil {
			return err
		}
		if strings.IndexByte(at.Space, 0) >= 0 {
			return &inventory.Fault{At: e.At, Reason: fmt.Sprintf("there is a NUL in the space %.200q", at.Space)}
		}
		if in.Format() == inventory.S3 && e.Time.Equal(made) { // the row has no time
			e.Time = time.Time{}
		}
		key = append(append(append(key[:0], at.Space...), 0), at.Item...)
		value = appendItem(value[:0], Item{Size: e.Size, Time: e.Time, Version: e.Version,
			ETag: strings.Trim(e.ETag, `"`), Digests: e.Digests})
		if err := s.add(key, value); err != nil {
			return err
		}
	}
	for kind, n := range in.Skipped() {
		l.skipped[kind] += n
	}
	if rows == 0 {
		return fmt.Errorf("%w: %s lists nothing", inventory.ErrInvalid, in.Path())
	}
	return nil
}

// findSpaces sets the spaces, by one seek for each.
func (l *Listing) findSpaces() error {
	next := ""
	for {
		r, err := l.seek(next)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		space, _, _ := strings.Cut(string(r.key), "\x00")
		l.spaces = append(l.spaces, space)
		next = space + "\x01"
	}
}

// seek returns a reader whose record is the first one with a key that is not less than key. The error is io.EOF if
// there is none.
func (l *Listing) seek(key string) (*reader, error) {
	r := l.file.after(key)
	for {
		if err := r.next(); err != nil || string(r.key) >= key {
			return r, err
		}
	}
}

// Close removes the temporary file.
func (l *Listing) Close() error { return l.file.Close() }

// ID identifies the rows, the store and the time, whatever the names and the order of the listings.
func (l *Listing) ID() string {
	return schemas.ID("listing", l.account, l.store, l.made.UTC().Format(time.RFC3339Nano),
		hex.EncodeToString(l.file.runs[0].sum.Sum(nil)))
}

// Account and Store are those of the copies.
func (l *Listing) Account() string { return l.account }

// Store is the id of the store in its account.
func (l *Listing) Store() string { return l.store }

// Made returns when the listings were made.
func (l *Listing) Made() time.Time { return l.made }

// Spaces returns the spaces, sorted.
func (l *Listing) Spaces() []string { return l.spaces }

// Len returns the number of items of all spaces.
func (l *Listing) Len() int64 { return l.file.runs[0].records }

// Skipped returns the numbers of skipped rows by kind: those of inventory.Listing.Skipped, and of other prefixes.
func (l *Listing) Skipped() map[string]int64 { return maps.Clone(l.skipped) }

// Items returns the items of a space after one, in the order of the bytes of their names.
func (l *Listing) Items(space, after string) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		prefix := space + "\x00"
		r, err := l.seek(prefix + after)
		for ; err == nil; err = r.next() {
			name, ok := strings.CutPrefix(string(r.key), prefix)
			if !ok {
				return
			}
			if name == after { // an item has a name
				continue
			}
			i := readItem(r.value)
			if i.Name = name; !yield(i, nil) {
				return
			}
		}
		if !errors.Is(err, io.EOF) {
			yield(Item{}, err)
		}
	}
}

// appendItem appends an item without its name.
func appendItem(b []byte, i Item) []byte {
	b = binary.AppendVarint(b, i.Size)
	if i.Time.IsZero() {
		b = append(b, 0)
	} else {
		b = binary.AppendVarint(append(b, 1), i.Time.Unix())
		b = binary.AppendUvarint(b, uint64(i.Time.Nanosecond()))
	}
	texts := []string{i.Version, i.ETag}
	for _, algorithm := range i.Digests.Algorithms() {
		texts = append(texts, algorithm, i.Digests[algorithm])
	}
	for _, t := range texts {
		b = append(binary.AppendUvarint(b, uint64(len(t))), t...)
	}
	return b
}

// readItem reads what appendItem has appended.
func readItem(b []byte) (i Item) {
	size, n := binary.Varint(b)
	i.Size, b = size, b[n:]
	known := b[0] == 1
	if b = b[1:]; known {
		seconds, n := binary.Varint(b)
		nanos, m := binary.Uvarint(b[n:])
		i.Time, b = time.Unix(seconds, int64(nanos)).UTC(), b[n+m:]
	}
	text := func() string {
		size, n := binary.Uvarint(b)
		t := string(b[n : n+int(size)])
		b = b[n+int(size):]
		return t
	}
	for i.Version, i.ETag = text(), text(); len(b) > 0; {
		if i.Digests == nil {
			i.Digests = digest.Set{}
		}
		algorithm := text()
		i.Digests[algorithm] = text()
	}
	return i
}

// join unites two rows of one item. If they contradict each other it is unknown which of them is right, and so is the
// listing as a whole.
func join(key, x, y []byte) ([]byte, error) {
	a, b := readItem(x), readItem(y)
	differs := ""
	text := func(what string, a *string, b string) {
		if *a != "" && b != "" && *a != b {
			differs = what
		}
		if *a == "" {
			*a = b
		}
	}
	text("version", &a.Version, b.Version)
	text("ETag", &a.ETag, b.ETag)
	switch {
	case a.Size >= 0 && b.Size >= 0 && a.Size != b.Size:
		differs = "size"
	case !a.Time.IsZero() && !b.Time.IsZero() && !a.Time.Equal(b.Time):
		differs = "time"
	case a.Digests.Compare(b.Digests) == digest.Disagree:
		differs = "digest"
	}
	if differs != "" {
		space, item, _ := strings.Cut(string(key), "\x00")
		return nil, fmt.Errorf("%w: item %.200q of space %q is listed again, with another %s",
			inventory.ErrInvalid, item, space, differs)
	}
	if a.Size < 0 {
		a.Size = b.Size
	}
	if a.Time.IsZero() {
		a.Time = b.Time
	}
	if len(b.Digests) > 0 {
		a.Digests = a.Digests.Union(b.Digests)
	}
	return appendItem(nil, a), nil
}
