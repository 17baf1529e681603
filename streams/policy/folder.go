package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/nearest"
)

const (
	accountsFile = "duplication-accounts.json" // a JSON array of the names of accounts
	infix        = "-duplication-policy"       // of the name of a document, between account and extension

	maxFile     = 1 << 20   // bytes of one file
	maxDocument = 240 << 10 // bytes of one document as JSON, so that it fits into a message
)

// A Store is a configured store, as far as it matters for the validation of documents.
type Store struct {
	ID       string
	ReadOnly bool   // cannot be a destination
	Space    string // the only space of the store; empty if it may have any
}

// A Folder is the content of a policy folder.
type Folder struct {
	// Documents holds the valid documents by account.
	Documents map[string]Document
	// Sums holds the hex SHA-256 of the file of each of Documents, by account.
	Sums   map[string]string
	Faults Faults
	// Ignored lists files with names of documents that were not read, because the list of accounts does not have the
	// account or because the extension is unknown.
	Ignored []string
}

// ReadFolder reads the documents of a folder in the layout of the DuraCloud Mill: duplication-accounts.json and, for
// each account in it, <account>-duplication-policy.json (or .yaml). accounts holds the configured stores by account; if
// it is nil, ReadFolder does not check accounts and stores.
func ReadFolder(fsys fs.FS, accounts map[string][]Store) Folder {
	f := folder{Folder{Documents: map[string]Document{}, Sums: map[string]string{}}, fsys, accounts}
	if _, err := fs.Stat(fsys, "."); err != nil {
		f.fault("", "", documentFault(0, "read the folder: %v", reasonOf(err)))
		return f.Folder
	}
	names, lines, faults := f.list()
	if faults != nil {
		f.fault("", accountsFile, faults)
		return f.Folder
	}
	for i, account := range names {
		if slices.Contains(names[:i], account) {
			continue
		}
		if reason := f.unknown(account); reason != "" {
			f.fault(account, accountsFile, documentFault(lines[i], "%s", reason))
			continue
		}
		f.account(account)
	}
	f.unread(names)
	return f.Folder
}

type folder struct {
	Folder
	fsys     fs.FS
	accounts map[string][]Store // nil if unknown
}

// fault adds the faults of a file.
func (f *folder) fault(account, file string, faults Faults) {
	for _, fault := range faults {
		fault.Account, fault.File = account, file
		f.Faults = append(f.Faults, fault)
	}
}

// list reads the list of accounts, with their lines.
func (f *folder) list() (names []string, lines []int, faults Faults) {
	b, err := f.file(accountsFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, documentFault(0, `is missing: it lists the accounts that have a policy here, such as ["acme"]`)
	case err != nil:
		return nil, nil, documentFault(0, "%v", err)
	}
	root, err := read(b)
	if err != nil {
		errors.As(err, &faults)
		return nil, nil, faults
	}
	r := reader{lines: map[string]int{}}
	names = r.texts(root, "")
	for i := range names {
		lines = append(lines, r.lines[index("", i)])
	}
	return names, lines, r.faults
}

// unknown returns the reason why an account in the list cannot have a document; empty if it can.
func (f *folder) unknown(account string) string {
	if account == "" || !fs.ValidPath(account+infix) || strings.Contains(account, "/") {
		return fmt.Sprintf("%q is not a name of an account", account)
	}
	if _, ok := f.accounts[account]; ok || f.accounts == nil {
		return ""
	}
	reason := fmt.Sprintf("the configuration has no account %q", account)
	if meant := nearest.Of(account, slices.Collect(maps.Keys(f.accounts))); meant != "" {
		reason += "; did you mean " + meant + "?"
	}
	return reason
}

// account reads the document of an account.
func (f *folder) account(account string) {
	var found []string
	var content []byte
	for _, name := range documentNames(account) {
		b, err := f.file(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			f.fault(account, name, documentFault(0, "%v", err))
			return
		}
		found, content = append(found, name), b
	}
	switch len(found) {
	case 0:
		f.fault(account, documentNames(account)[0], documentFault(0, "is missing, as is %s: %s names account %q",
			documentNames(account)[1], accountsFile, account))
		return
	case 2:
		f.fault(account, found[1],
			documentFault(0, "is a second document of account %q, beside %s: remove one of them", account, found[0]))
		return
	}
	d, err := f.document(account, content)
	if err != nil {
		var faults Faults
		errors.As(err, &faults)
		f.fault(account, found[0], faults)
		return
	}
	sum := sha256.Sum256(content)
	f.Documents[account], f.Sums[account] = d, hex.EncodeToString(sum[:])
}

func documentNames(account string) [2]string {
	return [2]string{account + infix + ".json", account + infix + ".yaml"}
}

// document parses and validates a document. The error is Faults: those of parsing, and those of validation outside of
// the parts that could not be parsed.
func (f *folder) document(account string, content []byte) (Document, error) {
	var faults Faults
	d, lines, err := parse(content)
	if errors.As(err, &faults) && lines == nil {
		return d, faults
	}
	if f.accounts != nil {
		for _, fault := range d.faultsFor(f.accounts[account]) {
			if !slices.ContainsFunc(faults, func(known Fault) bool { return overlap(known.Key, fault.Key) }) {
				fault.Line = lineOf(lines, fault.Key)
				faults = append(faults, fault)
			}
		}
	}
	if b, err := json.Marshal(d); err != nil || len(b) > maxDocument {
		faults.add(0, "", "has %d bytes as JSON, more than %d", len(b), maxDocument)
	}
	return d, faults.err()
}

// overlap reports whether two paths are equal or one contains the other.
func overlap(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	return strings.HasPrefix(b, a) && (len(a) == len(b) || a == "" || b[len(a)] == '.' || b[len(a)] == '[')
}

// faultsFor returns the faults of a document for an account with these stores.
func (d Document) faultsFor(stores []Store) (faults Faults) {
	ids := make([]string, len(stores))
	for i, s := range stores {
		ids[i] = s.ID
	}
	errors.As(d.Validate(ids), &faults)
	return append(faults, d.unusablePairs(stores)...)
}

// unusablePairs returns a fault for each pair with a read-only destination, or with a source that lacks the space.
func (d Document) unusablePairs(stores []Store) (faults Faults) {
	check := func(path, space string, pairs []Pair) {
		for i, p := range pairs {
			for _, s := range stores {
				switch {
				case s.ID == p.Destination && s.ReadOnly:
					faults.add(0, index(path, i)+".destStoreId", "store %q is read-only: its layout is plain", s.ID)
				case s.ID == p.Source && space != "" && s.Space != "" && s.Space != space:
					faults.add(0, index(path, i)+".srcStoreId", "store %q has no space %q: its only space is %q",
						s.ID, space, s.Space)
				}
			}
		}
	}
	for _, space := range slices.Sorted(maps.Keys(d.Spaces)) {
		check(below(keySpaces, space), space, d.Spaces[space])
	}
	check(keyDefault, "", d.Default)
	return faults
}

// lineOf returns the line of a path, or of the innermost object or list around it; 0 if none is known.
func lineOf(lines map[string]int, path string) int {
	for path != "" {
		if line, ok := lines[path]; ok {
			return line
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return 0
}

// file reads a file of the folder. It does not open other things, such as a pipe, on which it could block.
func (f *folder) file(name string) ([]byte, error) {
	info, err := fs.Stat(f.fsys, name)
	if err != nil {
		return nil, reasonOf(err)
	}
	switch {
	case info.IsDir():
		return nil, errors.New("is a directory, not a file")
	case !info.Mode().IsRegular():
		return nil, errors.New("is not a regular file")
	case info.Size() > maxFile:
		return nil, fmt.Errorf("has %d bytes, more than %d", info.Size(), maxFile)
	}
	b, err := fs.ReadFile(f.fsys, name)
	return b, reasonOf(err)
}

// reasonOf returns err without the path, which the caller knows.
func reasonOf(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// unread collects the files with names of documents that do not belong to these accounts.
func (f *folder) unread(accounts []string) {
	entries, err := fs.ReadDir(f.fsys, ".")
	if err != nil {
		f.fault("", "", documentFault(0, "list the folder: %v", reasonOf(err)))
		return
	}
	known := map[string]bool{}
	for _, account := range accounts {
		for _, name := range documentNames(account) {
			known[name] = true
		}
	}
	for _, e := range entries {
		if strings.Contains(e.Name(), infix+".") && !known[e.Name()] {
			f.Ignored = append(f.Ignored, e.Name())
		}
	}
}
