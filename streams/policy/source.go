package policy

import (
	"fmt"
	"reflect"
)

// ReadFileOf is ReadFile for a document of a known account, which neither the document nor the file's name needs to
// contain. A document that names another account has a fault.
func ReadFileOf(account, name string, content []byte, accounts map[string][]Store) File {
	f := ReadFile(documentNames(account)[1], content, accounts)
	for _, faults := range []Faults{f.Faults, f.Warnings} {
		for i := range faults {
			faults[i].File = name
			if own := f.Document.Account; faults[i].Key == keyAccount && own != "" && own != account {
				faults[i].Reason = fmt.Sprintf("is %q, and the document is one of account %q", own, account)
			}
		}
	}
	return f
}

// Equal reports whether two documents of one account say the same. Only one of them may have the key account.
func (d Document) Equal(other Document) bool {
	d.Account, other.Account = "", ""
	return reflect.DeepEqual(d, other)
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
