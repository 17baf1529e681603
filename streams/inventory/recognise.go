package inventory

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

var payloadManifest = regexp.MustCompile(`(?i)^manifest-([a-z0-9-]+)\.txt$`)

// headBytes is the number of bytes of a file that recognition examines.
const headBytes = 64 << 10

// recogniseFile determines the format of a file by its content, its name and the files beside it.
func recogniseFile(path string, o Options) (Format, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("open the listing: %w", err)
	}
	defer f.Close()
	in, err := newInput(path, f, "")
	if err != nil {
		return "", err
	}
	head, err := in.r.Peek(headBytes)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", in.damaged(err)
	}
	_, noBag := os.Stat(filepath.Join(filepath.Dir(path), "bagit.txt"))
	candidates, why := recognise(base(path), head, noBag == nil, o)
	switch {
	case len(candidates) == 1:
		return candidates[0], nil
	case len(candidates) > 1:
		return "", ambiguous(path, candidates)
	case why != "":
		return "", fmt.Errorf("%w: %s: %s", ErrFormat, path, why)
	}
	return "", fmt.Errorf("%w: %s has no known format (%s); say with --format which it is",
		ErrFormat, path, joinFormats(Formats()))
}

// recognise returns the possible formats of a listing, by the first bytes of its text, its name, and whether it is in a
// bag. If there is none, why is the reason.
func recognise(name string, head []byte, inBag bool, o Options) (candidates []Format, why string) {
	switch {
	case len(bytes.TrimSpace(head)) == 0:
		return nil, "is empty"
	case bytes.HasPrefix(head, []byte("PAR1")), bytes.HasPrefix(head, []byte("ORC")):
		return nil, "Parquet and ORC are not supported; set the output format of the S3 Inventory to CSV"
	case bytes.HasPrefix(head, []byte("%%%% HASHDEEP")):
		return nil, "hashdeep's own format is not supported; write sums, or a table with a header"
	case bytes.HasPrefix(bytes.TrimSpace(head), []byte("{")):
		return recogniseJSON(head)
	case name == "bagit.txt" || bytes.HasPrefix(head, []byte("BagIt-Version:")):
		return []Format{BagIt}, ""
	}
	if line := firstSum(head); line != "" {
		_, _, path, reason := splitSum(line, "")
		bagName := payloadManifest.MatchString(name)
		switch {
		case bagName && inBag:
			return []Format{BagIt}, ""
		case reason == "" && bagName && strings.HasPrefix(path, "data/"):
			return []Format{BagIt, Sums}, "" // reading one as the other would give wrong names
		case reason == "":
			return []Format{Sums}, ""
		}
	}
	return recogniseTable(firstLine(head), o)
}

func recogniseJSON(head []byte) (candidates []Format, why string) {
	if bytes.Contains(head, []byte(`"digestAlgorithm"`)) || bytes.Contains(head, []byte("ocfl.io/")) {
		candidates = append(candidates, OCFL)
	}
	if bytes.Contains(head, []byte(`"fileSchema"`)) || bytes.Contains(head, []byte(`"sourceBucket"`)) {
		candidates = append(candidates, S3)
	}
	if len(candidates) == 0 {
		return nil, "is JSON, but neither an OCFL inventory nor the manifest of an S3 Inventory, as far as its beginning says"
	}
	return candidates, ""
}

// firstSum returns the first line that is neither blank nor a comment.
func firstSum(head []byte) string {
	for line := range bytes.Lines(head) {
		if line = bytes.TrimRight(line, "\r\n"); len(bytes.TrimSpace(line)) > 0 && line[0] != '#' {
			return string(line)
		}
	}
	return ""
}

func recogniseTable(header []byte, o Options) (candidates []Format, why string) {
	header = bytes.TrimRight(header, "\r")
	split := map[Format][]string{}
	if fields := strings.Split(string(header), "\t"); len(fields) > 1 && o.Delimiter == 0 {
		split[TSV] = fields
	}
	r := csv.NewReader(bytes.NewReader(header))
	r.Comma, r.LazyQuotes = delimiterOf(header, o.Delimiter), true
	if fields, err := r.Read(); err == nil && (len(fields) > 1 || len(split) == 0) {
		split[CSV] = fields
	}
	for _, f := range []Format{TSV, CSV} {
		if len(split[f]) == 0 {
			continue
		}
		if _, err := readHeader(split[f], o.Columns); err == nil {
			candidates = append(candidates, f)
		} else if len(split[f]) > 1 {
			why = err.Error()
		}
	}
	if len(candidates) == 1 && candidates[0] == TSV && isDuraCloud(split[TSV]) {
		candidates[0] = DuraCloud
	}
	return candidates, why
}

// isDuraCloud reports whether a header is that of a DuraCloud manifest.
func isDuraCloud(header []string) bool {
	return len(header) >= 3 && slices.Equal(header[:3], []string{"space-id", "content-id", "MD5"})
}

// delimiterOf returns the delimiter of CSV: configured if set, else a comma, or a semicolon if the header has no comma.
func delimiterOf(header []byte, configured rune) rune {
	switch {
	case configured != 0:
		return configured
	case !bytes.ContainsRune(header, ',') && bytes.ContainsRune(header, ';'):
		return ';'
	}
	return ','
}
