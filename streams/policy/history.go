package policy

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/goccy/go-yaml"

	"github.com/millrace/millrace/streams/revision"
)

// Interfaces that publish policies: the field from of a record.
const (
	FromCLI    = revision.FromCLI
	FromFolder = revision.FromFolder
	FromImport = revision.FromImport
)

// An Entry is one record of an account in the topic policies.
type Entry = revision.Entry[Document]

// The states of an Entry.
const (
	EntryRevision = revision.EntryRevision
	EntryRemoval  = revision.EntryRemoval
)

// YAML returns the canonical form of a document: the same text for equal documents. Parse reads it.
func (d Document) YAML() (string, error) {
	content, err := json.Marshal(d)
	if err != nil {
		return "", fmt.Errorf("encode policy: %w", err)
	}
	text, err := yaml.JSONToYAML(content)
	if err != nil {
		return "", fmt.Errorf("encode policy: %w", err)
	}
	return string(bytes.TrimSpace(text)) + "\n", nil
}
