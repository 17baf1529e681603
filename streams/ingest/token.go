package ingest

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// minToken is the shortest length of a token in bytes, since short ones can be guessed.
const minToken = 16

// A Token is the permission to send events about some stores of one account.
type Token struct {
	Name    string // name of the sender in logs, and the user of Changes without a user
	Account string
	Stores  []string
	Secret  string
}

// String hides the secret.
func (t Token) String() string { return t.Name + " of " + t.Account + " ***" }

// GoString hides the secret.
func (t Token) GoString() string { return t.String() }

// A sender is the authorised sender of a request. It is empty if there are no tokens.
type sender struct {
	name, account string
	stores        []string
}

// may reports whether s may send events about a store of its account.
func (s sender) may(store string) bool { return s.account == "" || slices.Contains(s.stores, store) }

type hashed struct {
	sender
	sum [sha256.Size]byte
}

func hashTokens(tokens []Token) ([]hashed, error) {
	var (
		all  []hashed
		errs []error
		seen = map[[sha256.Size]byte]string{}
	)
	for _, t := range tokens {
		sum := sha256.Sum256([]byte(t.Secret))
		switch other, taken := seen[sum]; {
		case t.Name == "" || t.Account == "" || len(t.Stores) == 0:
			errs = append(errs, fmt.Errorf("token %q of account %q: name, account and stores are required", t.Name, t.Account))
		case len(t.Secret) < minToken:
			errs = append(errs, fmt.Errorf("token %q is shorter than %d bytes", t.Name, minToken))
		case taken:
			errs = append(errs, fmt.Errorf("token %q is the same as that of %q", t.Name, other))
		default:
			seen[sum] = t.Name
			all = append(all, hashed{sender{t.Name, t.Account, t.Stores}, sum})
		}
	}
	return all, errors.Join(errs...)
}

// authorise returns the sender of r. It compares the token with all known ones in constant time.
func (h *Handler) authorise(r *http.Request) (s sender, ok bool) {
	if len(h.tokens) == 0 {
		return sender{}, true
	}
	sum := sha256.Sum256([]byte(tokenOf(r)))
	for _, t := range h.tokens {
		if subtle.ConstantTimeCompare(sum[:], t.sum[:]) == 1 {
			s, ok = t.sender, true
		}
	}
	return s, ok
}

// tokenOf returns the token of r: a bearer token, or the password of clients that support only basic authentication.
func tokenOf(r *http.Request) string {
	if _, password, ok := r.BasicAuth(); ok {
		return password
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}
