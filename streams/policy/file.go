package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// maxDocument is the size in bytes of one document as JSON, so that it fits into a message.
const maxDocument = 240 << 10

// A Store is a configured store, as far as it matters for the validation of documents.
type Store struct {
	ID       string
	ReadOnly bool   // cannot be a destination
	Space    string // the only space of the store; empty if it may have any
}

// A File is a policy document that was read from a file.
type File struct {
	// Account is the account of the document; empty if it is unknown, which is a fault.
	Account  string
	Document Document
	// Sum is the hex SHA-256 of the file.
	Sum string
	// Faults are all reasons not to publish the document, of syntax and of meaning; nil if there are none.
	Faults Faults
	// Warnings are parts that are valid and probably not meant.
	Warnings Faults
}

// ReadFile reads a document from the content of a file. The account is the one that the document names, or else that of
// the file's name. accounts holds the configured stores by account; if it is nil, any account and any store will do.
//
// All faults are reported at once, but of those of syntax only the first one.
func ReadFile(name string, content []byte, accounts map[string][]Store) File {
	p := parse(content)
	f := File{Document: p.document}
	sum := sha256.Sum256(content)
	f.Sum = hex.EncodeToString(sum[:])
	known := p.faults
	add := func(faults Faults) {
		for _, fault := range faults {
			if slices.ContainsFunc(known, func(k Fault) bool { return k.Key != "" && overlap(k.Key, fault.Key) }) {
				continue
			}
			at := p.place(fault.Key)
			fault.Line, fault.Column = at.line, at.column
			p.faults = append(p.faults, fault)
		}
	}
	if f.Account = AccountOf(name); !p.malformed {
		var faults Faults
		f.Account, faults = accountOf(name, p, accounts)
		add(faults)
	}
	stores, configured := accounts[f.Account]
	add(p.document.check(stores, configured, p.names))
	if b, err := json.Marshal(p.document); err != nil || len(b) > maxDocument {
		p.faults.add(place{}, "", "has %d bytes as JSON, more than %d", len(b), maxDocument)
	}
	f.Faults, p.faults = p.faults, nil
	known = f.Faults
	v := p.document.warnings(time.Now(), p.names)
	add(v.faults)
	f.Warnings = p.faults
	for _, faults := range []Faults{f.Faults, f.Warnings} {
		_ = faults.err() // sorts them
		for i := range faults {
			faults[i].Account, faults[i].File = f.Account, name
		}
	}
	return f
}

// AccountOf returns the account of a document with this file name; empty if the name says none.
func AccountOf(name string) string {
	name = path.Base(name)
	for _, ext := range []string{".json", ".yaml"} {
		if account, ok := strings.CutSuffix(name, infix+ext); ok {
			return account
		}
	}
	return ""
}

// accountOf returns the account of a document, and the faults of its name.
func accountOf(name string, p parsed, accounts map[string][]Store) (account string, faults Faults) {
	account = AccountOf(name)
	own := p.document.Account
	_, has := p.places[keyAccount]
	switch {
	case has && own == "":
		faults.add(place{}, keyAccount, "is empty")
	case has && account != "" && own != account:
		faults.add(place{}, keyAccount, "is %q, and the name of the file says %q", own, account)
	case has:
		account = own
		if reason := unknownAccount(own, accounts); reason != "" {
			faults.add(place{}, keyAccount, "%s", reason)
		}
	case account == "":
		faults.add(place{}, "", "has no account: write account: NAME, or name the file NAME%s.yaml", infix)
	default:
		if reason := unknownAccount(account, accounts); reason != "" {
			faults.add(place{}, "", "%s", reason)
		}
	}
	return account, faults
}

// unknownAccount returns the reason why an account is not one of accounts; empty if it is, or accounts is nil.
func unknownAccount(account string, accounts map[string][]Store) string {
	if _, ok := accounts[account]; ok || accounts == nil {
		return ""
	}
	return fmt.Sprintf("the configuration has no account %q%s", account,
		suggest(account, slices.Collect(maps.Keys(accounts))...))
}

// overlap reports whether two paths are equal or one contains the other.
func overlap(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	return strings.HasPrefix(b, a) && (len(a) == len(b) || a == "" || b[len(a)] == '.' || b[len(a)] == '[')
}

// Check returns all reasons not to publish the document for an account with these stores; nil if there are none. Unlike
// Validate, it knows the stores' settings.
func (d Document) Check(account string, stores []Store) error {
	faults := d.check(stores, true, nil)
	if d.Account != "" && d.Account != account {
		faults.add(place{}, keyAccount, "is %q, and the document is one of account %q", d.Account, account)
	}
	return faults.err()
}

// check is Check without the account, with the paths of the document's file. Unless the account is known, it may have
// any stores.
func (d Document) check(stores []Store, known bool, names map[string]string) Faults {
	ids := make([]string, len(stores))
	for i, s := range stores {
		ids[i] = s.ID
	}
	v := validator{stores: ids, any: !known, names: names}
	v.faults = d.validate(v)
	v.unusablePairs(d, stores)
	return v.faults
}

// unusablePairs adds a fault for each pair with a read-only destination, or with a source that lacks the space.
func (v *validator) unusablePairs(d Document, stores []Store) {
	check := func(path, space string, pairs []Pair) {
		for i, p := range pairs {
			for _, s := range stores {
				switch {
				case s.ID == p.Destination && s.ReadOnly:
					v.add(index(path, i)+".destStoreId", "store %q is read-only: its layout is plain", s.ID)
				case s.ID == p.Source && space != "" && s.Space != "" && s.Space != space:
					v.add(index(path, i)+".srcStoreId", "store %q has no space %q: its only space is %q",
						s.ID, space, s.Space)
				}
			}
		}
	}
	for _, space := range slices.Sorted(maps.Keys(d.Spaces)) {
		check(below(keySpaces, space), space, d.Spaces[space])
	}
	check(keyDefault, "", d.Default)
}
