package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
)

// AccountsFile names the file that lists a folder's accounts: a JSON array of names.
const AccountsFile = "duplication-accounts.json"

// An AccountError is what keeps one account's document from being read.
type AccountError struct {
	Account string
	Err     error
}

// Error names the account and what is wrong.
func (e *AccountError) Error() string {
	return fmt.Sprintf("policy of account %q: %v", e.Account, e.Err)
}

// Unwrap returns what is wrong: Faults, or an error of reading.
func (e *AccountError) Unwrap() error { return e.Err }

// ReadFolder reads the documents of a folder in the older tools' layout:
// duplication-accounts.json, and for each account that it names
// <account>-duplication-policy.json (or .yaml). It returns every document that can be
// read; the error joins one *AccountError for each that cannot. Only where the list of
// accounts itself cannot be read there are no documents.
func ReadFolder(fsys fs.FS) (map[string]Document, error) {
	b, err := fs.ReadFile(fsys, AccountsFile)
	if err != nil {
		return nil, fmt.Errorf("read list of accounts: %w", err)
	}
	var accounts []string
	if err := json.Unmarshal(forgiveCommas(b), &accounts); err != nil {
		return nil, fmt.Errorf("read %s: %w", AccountsFile, err)
	}
	slices.Sort(accounts)
	documents := map[string]Document{}
	var faults []error
	for _, account := range slices.Compact(accounts) {
		d, err := readAccount(fsys, account)
		if err != nil {
			faults = append(faults, &AccountError{account, err})
			continue
		}
		documents[account] = d
	}
	return documents, errors.Join(faults...)
}

func readAccount(fsys fs.FS, account string) (Document, error) {
	var found []string
	var content []byte
	for _, ext := range []string{".json", ".yaml"} {
		name := account + "-duplication-policy" + ext
		if account == "" || !fs.ValidPath(name) {
			return Document{}, Faults{"this is no name of an account"}
		}
		b, err := fs.ReadFile(fsys, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return Document{}, fmt.Errorf("read document: %w", err)
		}
		found, content = append(found, name), b
	}
	switch len(found) {
	case 0:
		return Document{}, fmt.Errorf("find %s-duplication-policy.json: %w", account, fs.ErrNotExist)
	case 1:
		return Parse(content)
	}
	return Document{}, Faults{fmt.Sprintf("both %s and %s exist", found[0], found[1])}
}
