package duplicate

import (
	"encoding/xml"
	"errors"
	"fmt"
	"strings"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
)

// DuraCloud's clients store a large file as chunks, items of the same space, and a manifest document that names them
// in order. A reader takes the document for the promise that the chunks are there.

const (
	chunkManifestSuffix = ".dura-manifest"
	// maxChunkManifest is the largest manifest document that is read, in bytes. An entry has about 200 bytes.
	maxChunkManifest = 16 << 20
	maxChunks        = 100_000
)

// A chunk is an entry of a manifest document.
type chunk struct {
	ID   string `xml:"chunkId,attr"`
	Size int64  `xml:"byteSize"`
	MD5  string `xml:"md5"`
}

// isChunkManifest reports whether an item has the name of a manifest document.
func isChunkManifest(item string) bool {
	base, ok := strings.CutSuffix(item, chunkManifestSuffix)
	return ok && base != ""
}

// parseChunkManifest returns the chunks of the manifest document of an item.
func parseChunkManifest(item string, document []byte) ([]chunk, error) {
	var d struct {
		XMLName xml.Name  `xml:"chunksManifest"`
		Chunks  chunkList `xml:"chunks"`
	}
	if err := xml.Unmarshal(document, &d); err != nil {
		return nil, fmt.Errorf("read the XML: %w", err)
	}
	if len(d.Chunks) == 0 {
		return nil, errors.New("it names no chunks")
	}
	seen := make(map[string]bool, len(d.Chunks))
	for i := range d.Chunks {
		c := &d.Chunks[i]
		c.MD5 = strings.ToLower(strings.TrimSpace(c.MD5))
		switch {
		case storage.CheckItem(c.ID) != nil:
			return nil, fmt.Errorf("chunk %d has the id %q, which is no name of an item", i, c.ID)
		case c.ID == item || seen[c.ID]:
			return nil, fmt.Errorf("chunk %d has the id %q of another entry or of the document", i, c.ID)
		case c.Size < 0:
			return nil, fmt.Errorf("chunk %q has %d bytes", c.ID, c.Size)
		case len(c.MD5) != 32 || strings.Trim(c.MD5, "0123456789abcdef") != "":
			return nil, fmt.Errorf("chunk %q has the MD5 %q", c.ID, c.MD5)
		}
		seen[c.ID] = true
	}
	return d.Chunks, nil
}

// A chunkList is the list of chunks of a manifest document, of at most maxChunks.
type chunkList []chunk

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
			*l = append(*l, chunk{})
			err = d.DecodeElement(&(*l)[len(*l)-1], &start)
		}
		if err != nil {
			return err
		}
	}
}

// isAt reports whether a store that was asked for the chunk has it. Of a chunk whose MD5 the store does not report,
// only the size is compared.
func (c chunk) isAt(at Side) bool {
	return at.Presence == Present && at.Object.Size == c.Size &&
		(digest.Set{digest.MD5: c.MD5}).Compare(at.Object.Digests) != digest.Disagree
}

// namedChunks is the number of missing chunks that a message names.
const namedChunks = 5

// describeChunks says which chunks are missing or differ, and how many are excluded by the policy.
func describeChunks(missing []string, more bool, excluded int) string {
	var parts []string
	if len(missing) > 0 {
		names := fmt.Sprintf("%q", missing[:min(len(missing), namedChunks)])
		if more || len(missing) > namedChunks {
			names += " and more"
		}
		parts = append(parts, "chunks that are absent or differ at the destination: "+names)
	}
	if excluded > 0 {
		parts = append(parts, fmt.Sprintf("%d chunks are excluded by the policy", excluded))
	}
	return strings.Join(parts, "; ")
}
