package policy

import (
	"errors"
	"path"
	"strings"
)

// AccountOf returns the account in the name of a file, ACCOUNT-duplication-policy.json or .yaml; false if the file has
// no such name.
func AccountOf(file string) (string, bool) {
	base := path.Base(file)
	for _, extension := range []string{".json", ".yaml"} {
		if account, ok := strings.CutSuffix(base, infix+extension); ok && account != "" {
			return account, true
		}
	}
	return "", false
}

// ReadFile parses and validates a file with the document of one account. If account is empty, it is the one in the name
// of the file. accounts holds the configured stores by account; if it is nil, accounts and stores are not checked. The
// error is Faults, with the name of the file.
func ReadFile(file, account string, content []byte, accounts map[string][]Store) (of string, _ Document, _ error) {
	f := folder{accounts: accounts}
	if account == "" {
		account, _ = AccountOf(file)
	}
	if account == "" {
		f.fault("", file, documentFault(0, "names no account: name the file ACCOUNT%s.yaml or .json", infix))
		return "", Document{}, f.Faults
	}
	reason := f.unknown(account)
	if reason != "" {
		f.fault(account, file, documentFault(0, "%s", reason))
		f.accounts = nil // all of its stores are unknown
	}
	if len(content) > maxFile {
		f.fault(account, file, documentFault(0, "has %d bytes, more than %d", len(content), maxFile))
		return account, Document{}, f.Faults
	}
	d, err := f.document(account, content)
	var faults Faults
	if errors.As(err, &faults) {
		f.fault(account, file, faults)
	}
	if len(f.Faults) > 0 {
		return account, Document{}, f.Faults
	}
	return account, d, nil
}

// Listed returns the accounts of the folder's list of accounts; nil if the list has a fault.
func (f Folder) Listed() map[string]bool {
	listed := map[string]bool{}
	for account := range f.Documents {
		listed[account] = true
	}
	for _, fault := range f.Faults {
		if fault.Account == "" {
			return nil
		}
		listed[fault.Account] = true
	}
	return listed
}
