package ingest

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// minToken is how long a token is at least: one that can be guessed is none.
const minToken = 16

// A Token is who may send events of one account.
type Token struct {
	Name    string // of the sender, in logs and as the user of changes that name none
	Account string
	Secret  string
}

// String hides the secret.
func (t Token) String() string { return t.Name + " of " + t.Account + " ***" }

// GoString hides the secret.
func (t Token) GoString() string { return t.String() }

// A sender is who sent a request. The account is empty where there are no tokens.
type sender struct{ name, account string }

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
		case t.Name == "" || t.Account == "":
			errs = append(errs, fmt.Errorf("token %q of account %q: both names must be there", t.Name, t.Account))
		case len(t.Secret) < minToken:
			errs = append(errs, fmt.Errorf("token %q is shorter than %d bytes", t.Name, minToken))
		case taken:
			errs = append(errs, fmt.Errorf("token %q is the same as that of %q", t.Name, other))
		default:
			seen[sum] = t.Name
			all = append(all, hashed{sender{t.Name, t.Account}, sum})
		}
	}
	return all, errors.Join(errs...)
}

// authorise says who sent r. Its token is compared with all, in a time that tells nothing of any.
func (h *Handler) authorise(r *http.Request) (s sender, ok bool) {
	if len(h.tokens) == 0 {
		return sender{}, true
	}
	sum := sha256.Sum256([]byte(presented(r)))
	for _, t := range h.tokens {
		if subtle.ConstantTimeCompare(sum[:], t.sum[:]) == 1 {
			s, ok = t.sender, true
		}
	}
	return s, ok
}

// presented is the token of r: a bearer token, or the password of who can only send those.
func presented(r *http.Request) string {
	if _, password, ok := r.BasicAuth(); ok {
		return password
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}
