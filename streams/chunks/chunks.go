// Package chunks reads the manifest documents of DuraCloud. Its clients store a large file as chunks, items of the same
// space, and a document that names them in order. A reader of the file takes the document for the promise that they are
// there.
package chunks

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
)

const (
	// DocumentSuffix ends the name of a manifest document, after the name of the file.
	DocumentSuffix = ".dura-manifest"
	// ChunkInfix is in the name of a chunk that a client has made, between the name of the file and a number.
	ChunkInfix = ".dura-chunk-"
	// MaxDocument is the size of the largest document that is read, in bytes. An entry has about 200 bytes.
	MaxDocument = 16 << 20
	maxChunks   = 100_000
)

// A Document is a manifest document.
type Document struct {
	Size   int64 // of the whole file in bytes; negative: the document does not say
	Chunks []Chunk
}

// A Chunk is an entry of a document.
type Chunk struct {
	ID   string
	Size int64
	MD5  string // empty: the client has not computed it
}

// noMD5 is what the chunker writes if it was told not to compute MD5s.
const noMD5 = "md5-not-preserved"

// Digests returns the digests that a chunk has by its document.
func (c Chunk) Digests() digest.Set {
	if c.MD5 == "" {
		return nil
	}
	return digest.Set{digest.MD5: c.MD5}
}

// IsDocument reports whether an item has the name of a manifest document.
func IsDocument(item string) bool {
	base, ok := strings.CutSuffix(item, DocumentSuffix)
	return ok && base != ""
}

// DocumentOf returns the name of the document of a chunk; false if the item does not have the name of a chunk.
func DocumentOf(item string) (document string, ok bool) {
	i := strings.LastIndex(item, ChunkInfix)
	if i <= 0 {
		return "", false
	}
	number := item[i+len(ChunkInfix):]
	if number == "" || strings.Trim(number, "0123456789") != "" {
		return "", false
	}
	return item[:i] + DocumentSuffix, true
}

// Read reads a document, at most MaxDocument+1 bytes of it, and returns it with its digests.
func Read(r io.Reader) ([]byte, digest.Set, error) {
	h, err := digest.New(digest.MD5, digest.SHA256)
	if err != nil {
		return nil, nil, err
	}
	var document bytes.Buffer
	if _, err := h.ReadFrom(io.TeeReader(io.LimitReader(r, MaxDocument+1), &document)); err != nil {
		return nil, nil, err
	}
	return document.Bytes(), h.Sum(), nil
}

// Parse parses the manifest document of an item.
func Parse(item string, document []byte) (Document, error) {
	var d struct {
		XMLName xml.Name  `xml:"chunksManifest"`
		Size    *int64    `xml:"header>sourceContent>byteSize"`
		Chunks  chunkList `xml:"chunks"`
	}
	if err := xml.Unmarshal(document, &d); err != nil {
		return Document{}, fmt.Errorf("read the XML: %w", err)
	}
	if len(d.Chunks) == 0 {
		return Document{}, errors.New("it names no chunks")
	}
	seen, all := make(map[string]bool, len(d.Chunks)), make([]Chunk, len(d.Chunks))
	for i, e := range d.Chunks {
		sum := strings.ToLower(strings.TrimSpace(e.MD5))
		switch {
		case storage.CheckItem(e.ID) != nil:
			return Document{}, fmt.Errorf("chunk %d has the id %q, which is no name of an item", i, e.ID)
		case e.ID == item || seen[e.ID]:
			return Document{}, fmt.Errorf("chunk %d has the id %q of another entry or of the document", i, e.ID)
		case e.Size == nil || *e.Size < 0:
			return Document{}, fmt.Errorf("chunk %q has no size", e.ID)
		case sum == noMD5:
			sum = ""
		case len(sum) != 32 || strings.Trim(sum, "0123456789abcdef") != "":
			return Document{}, fmt.Errorf("chunk %q has the MD5 %q", e.ID, e.MD5)
		}
		seen[e.ID] = true
		all[i] = Chunk{e.ID, *e.Size, sum}
	}
	whole := int64(-1)
	if d.Size != nil {
		whole = *d.Size
	}
	return Document{whole, all}, nil
}

// An entry is an entry of a document as it is written.
type entry struct {
	ID   string `xml:"chunkId,attr"`
	Size *int64 `xml:"byteSize"`
	MD5  string `xml:"md5"`
}

// A chunkList is the list of entries of a document, of at most maxChunks.
type chunkList []entry

// UnmarshalXML implements xml.Unmarshaler. It ends at the first chunk that is too many: a document of 16 MiB may name
// millions.
func (l *chunkList) UnmarshalXML(d *xml.Decoder, _ xml.StartElement) error {
	for {
		token, err := d.Token()
		if err != nil {
			return err
		}
		start, ok := token.(xml.StartElement)
		if _, end := token.(xml.EndElement); end {
			return nil
		}
		switch {
		case !ok:
			continue
		case start.Name.Local != "chunk":
			err = d.Skip()
		case len(*l) == maxChunks:
			err = fmt.Errorf("it names more than %d chunks", maxChunks)
		default:
			*l = append(*l, entry{})
			err = d.DecodeElement(&(*l)[len(*l)-1], &start)
		}
		if err != nil {
			return err
		}
	}
}
