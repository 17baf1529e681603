package policy

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

const (
	accountsFile = "duplication-accounts.json" // a JSON array of the names of accounts
	infix        = "-duplication-policy"       // of the name of a document, between account and extension

	maxFile = 1 << 20 // bytes of one file
)

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
		f.fault("", "", documentFault(place{}, "read the folder: %v", reasonOf(err)))
		return f.Folder
	}
	names, places, faults := f.list()
	if faults != nil {
		f.fault("", accountsFile, faults)
		return f.Folder
	}
	for i, account := range names {
		if slices.Contains(names[:i], account) {
			continue
		}
		if reason := f.unknown(account); reason != "" {
			f.fault(account, accountsFile, documentFault(places[i], "%s", reason))
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

// list reads the list of accounts, with their places.
func (f *folder) list() (names []string, places []place, faults Faults) {
	b, err := f.file(accountsFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, documentFault(place{}, `is missing: it lists the accounts that have a policy here, such as ["acme"]`)
	case err != nil:
		return nil, nil, documentFault(place{}, "%v", err)
	}
	root, faults := read(b)
	if faults != nil {
		return nil, nil, faults
	}
	r := reader{places: map[string]place{}}
	names = r.texts(root, "")
	for i := range names {
		places = append(places, r.places[index("", i)])
	}
	return names, places, r.faults
}

// unknown returns the reason why an account in the list cannot have a document; empty if it can.
func (f *folder) unknown(account string) string {
	if account == "" || !fs.ValidPath(account+infix) || strings.Contains(account, "/") {
		return fmt.Sprintf("%q is not a name of an account", account)
	}
	return unknownAccount(account, f.accounts)
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
			f.fault(account, name, documentFault(place{}, "%v", err))
			return
		}
		found, content = append(found, name), b
	}
	switch len(found) {
	case 0:
		f.fault(account, documentNames(account)[0], documentFault(place{}, "is missing, as is %s: %s names account %q",
			documentNames(account)[1], accountsFile, account))
		return
	case 2:
		f.fault(account, found[1],
			documentFault(place{}, "is a second document of account %q, beside %s: remove one of them", account, found[0]))
		return
	}
	file := ReadFile(found[0], content, f.accounts)
	if file.Faults != nil {
		f.Faults = append(f.Faults, file.Faults...)
		return
	}
	f.Documents[account], f.Sums[account] = file.Document, file.Sum
}

func documentNames(account string) [2]string {
	return [2]string{account + infix + ".json", account + infix + ".yaml"}
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
		f.fault("", "", documentFault(place{}, "list the folder: %v", reasonOf(err)))
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
