// Package extract writes the bytes of items into files, and to standard output.
//
// A file has its name only when all its bytes had the digests of the content, and no file is ever replaced. Bytes are
// taken from the first place that has good ones. What a place has instead is reported: it is absent, its bytes are
// others, or it did not answer, which says nothing about its bytes.
package extract

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
)

// A Content is what the bytes of an item have to be.
type Content struct {
	Digests  digest.Set // those of algorithms that millrace does not compute are ignored
	Size     int64      // negative: unknown
	Modified time.Time  // the date of a file; zero: that of the write
}

// A Place is a copy, or kept bytes, that may have the bytes of a content.
type Place struct {
	Store string `json:"store"`
	Kept  string `json:"kept,omitempty"` // the id of kept bytes
	// Guessed: only the size of the bytes is known to agree, so other bytes are no fault.
	Guessed bool `json:"-"`
	// Open opens the bytes. An error that wraps storage.ErrNotFound, ErrNoSpace or ErrName is an absence.
	Open func(context.Context) (io.ReadCloser, error) `json:"-"`
}

// A State says why a place has not given the bytes.
type State string

// The states.
const (
	Absent   State = "absent"   // the store does not have the item
	Mismatch State = "mismatch" // the bytes are others
	Unknown  State = "unknown"  // the store did not answer
)

// A Fault is a place that has not given the bytes.
type Fault struct {
	Place
	State  State  `json:"state"`
	Detail string `json:"detail,omitempty"`
}

// A Result says what became of an item.
type Result string

// The results.
const (
	Exported Result = "exported" // the bytes were verified and written
	Present  Result = "present"  // the file is there already, and its bytes were verified
	Differs  Result = "differs"  // something else has the name, or the name of a directory for it, and is left
	Unnamed  Result = "unnamed"  // the item cannot be a file of its name
	Lacking  Result = "lacking"  // no place has good bytes
)

// An Outcome is what became of an item.
type Outcome struct {
	Result Result  `json:"result"`
	Detail string  `json:"detail,omitempty"`
	From   *Place  `json:"from,omitempty"` // of an exported item
	Bytes  int64   `json:"-"`              // exported; of a lacking item, those that Stream has written nevertheless
	Faults []Fault `json:"copies,omitempty"`
}

// lacking ends an outcome without bytes.
func (o *Outcome) lacking() {
	o.Result, o.Detail = Lacking, "no copy has good bytes"
}

// fault adds the fault of a place that err has shown.
func (o *Outcome) fault(p *Place, err error) {
	f := Fault{Place: *p, State: Unknown, Detail: err.Error()}
	var other *mismatch
	switch {
	case errors.As(err, &other):
		f.State = Mismatch
	case errors.Is(err, storage.ErrNotFound), errors.Is(err, storage.ErrNoSpace), errors.Is(err, storage.ErrName):
		f.State, f.Detail = Absent, ""
	}
	if !p.Guessed || f.State == Unknown {
		o.Faults = append(o.Faults, f)
	}
}

// AddUnknown adds stores that did not answer and may have the bytes.
func (o *Outcome) AddUnknown(stores map[string]error) {
	for _, id := range slices.Sorted(maps.Keys(stores)) {
		named := func(f Fault) bool { return f.Store == id && f.State == Unknown }
		if !slices.ContainsFunc(o.Faults, named) {
			o.fault(&Place{Store: id}, fmt.Errorf("list what it has: %w", stores[id]))
		}
	}
}

// A mismatch is the error of bytes that are not those of the content.
type mismatch struct{ text string }

func (e *mismatch) Error() string { return e.text }

// A writeError is an error of the writer, not of the place that is read.
type writeError struct{ error }

func (e writeError) Unwrap() error { return e.error }

// known returns the digests of c that millrace computes.
func (c *Content) known() digest.Set {
	known := digest.Set{}
	for alg, d := range c.Digests {
		if digest.Known(alg) {
			known[alg] = d
		}
	}
	return known
}

// Verifiable reports whether bytes can be verified.
func (c *Content) Verifiable() bool { return len(c.known()) > 0 }

const noDigests = "there are no digests on record to verify the bytes with: a check computes them"

// blockBytes is the number of bytes that are read at a time.
const blockBytes = 256 << 10

// A stream is the verification of the bytes of a content while they are written.
type stream struct {
	content *Content
	known   digest.Set
	hasher  *digest.Hasher
}

// newStream returns a stream; the content must have known digests.
func newStream(c *Content) (*stream, error) {
	s := &stream{content: c, known: c.known()}
	var err error
	s.hasher, err = digest.New(s.known.Algorithms()...)
	return s, err
}

// copy reads the rest of the bytes and writes them to w. An error of w is a writeError.
func (s *stream) copy(ctx context.Context, w io.Writer, r io.Reader) error {
	size := int64(blockBytes)
	if s.content.Size >= 0 {
		size = min(size, s.content.Size+1)
	}
	block := make([]byte, size)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := r.Read(block)
		_, _ = s.hasher.Write(block[:n]) // it has no errors
		if all := s.content.Size; all >= 0 && s.hasher.Size() > all {
			return &mismatch{fmt.Sprintf("more than %d bytes", all)}
		}
		if _, err := w.Write(block[:n]); err != nil {
			return writeError{err}
		}
		if err == io.EOF { // an error that wraps EOF is a failure of the stream
			return s.verify()
		}
		if err != nil {
			return fmt.Errorf("read after %d bytes: %w", s.hasher.Size(), err)
		}
	}
}

// verify returns a mismatch if the bytes are not those of the content.
func (s *stream) verify() error {
	if n, all := s.hasher.Size(), s.content.Size; all >= 0 && n != all {
		return &mismatch{fmt.Sprintf("%d bytes, want %d", n, all)}
	}
	sums := s.hasher.Sum()
	for _, alg := range s.known.Algorithms() {
		if sums[alg] != s.known[alg] {
			return &mismatch{fmt.Sprintf("%s %s, want %s", alg, sums[alg], s.known[alg])}
		}
	}
	return nil
}

// read opens a place, and writes its bytes to w. Errors are as of stream.copy.
func (s *stream) read(ctx context.Context, w io.Writer, p *Place, skip int64) error {
	r, err := p.Open(ctx)
	if err != nil {
		return err
	}
	defer r.Close()                                                           // only read from
	if _, err := io.CopyN(io.Discard, r, skip); err != nil && err != io.EOF { //nolint:errorlint // as in copy
		return fmt.Errorf("read: %w", err)
	}
	return s.copy(ctx, w, r)
}

// heldBytes is the number of bytes that Stream holds back until it knows more.
const heldBytes = 8 << 20

// Stream writes the bytes of a content to w, from the first of places that has good ones. Contents of up to 8 MiB are
// verified first. More cannot be taken back: if the bytes turn out to be others, the result is Lacking and the bytes
// must not be used. If a place fails in between, the next one continues. An error is one of ctx or w.
func Stream(ctx context.Context, w io.Writer, c Content, places []Place) (o Outcome, err error) {
	if !c.Verifiable() {
		return Outcome{Result: Lacking, Detail: noDigests}, nil
	}
	held := &heldWriter{w: w}
	var s *stream
	for i := range places {
		if held.sent == 0 { // else it continues
			held.Reset()
			if s, err = newStream(&c); err != nil {
				return o, err
			}
		}
		var unwritten writeError
		if err = s.read(ctx, held, &places[i], held.sent); err == nil {
			err = held.flush()
		}
		switch {
		case ctx.Err() != nil:
			return o, ctx.Err()
		case errors.As(err, &unwritten):
			return o, fmt.Errorf("write: %w", unwritten.error)
		case err == nil:
			o.Result, o.From, o.Bytes = Exported, &places[i], s.hasher.Size()
			return o, nil
		}
		o.fault(&places[i], err)
		var other *mismatch
		if errors.As(err, &other) && held.sent > 0 {
			o.Result, o.Detail, o.Bytes = Lacking, "the bytes that were written are wrong: do not use them", held.sent
			return o, nil
		}
	}
	if o.lacking(); held.sent > 0 {
		o.Detail, o.Bytes = "the bytes that were written are incomplete: do not use them", held.sent
	}
	return o, nil
}

// A heldWriter holds back the first bytes.
type heldWriter struct {
	bytes.Buffer
	w    io.Writer
	sent int64
}

func (h *heldWriter) Write(p []byte) (int, error) {
	if h.sent == 0 && h.Len()+len(p) <= heldBytes {
		return h.Buffer.Write(p)
	}
	if err := h.flush(); err != nil {
		return 0, err
	}
	n, err := h.w.Write(p)
	h.sent += int64(n)
	return n, err
}

// flush writes what is held back.
func (h *heldWriter) flush() error {
	n, err := h.WriteTo(h.w)
	h.sent += n
	if err != nil {
		return writeError{err}
	}
	return nil
}
