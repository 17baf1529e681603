package kafka

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
)

// What brokers that answer may say in place of an answer.
var (
	// ErrLogin: they refuse the login.
	ErrLogin = errors.New("the brokers refuse the login: its mechanism, user or password is wrong")
	// ErrStarting: they cannot say what groups have committed. They make or load the topic of offsets, which takes
	// seconds after the first start of a cluster. The answer is the same for ever if they cannot make it, such as with
	// fewer brokers than offsets.topic.replication.factor.
	ErrStarting = errors.New("the brokers prepare their topic of offsets")
)

// explain wraps ErrLogin or ErrStarting around an error of that kind.
func explain(err error) error {
	for _, refusal := range []error{kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism, kerr.IllegalSaslState} {
		if errors.Is(err, refusal) {
			return fmt.Errorf("%w: %w", ErrLogin, err)
		}
	}
	for _, soon := range []error{kerr.CoordinatorNotAvailable, kerr.CoordinatorLoadInProgress} {
		if errors.Is(err, soon) {
			return fmt.Errorf("%w: %w", ErrStarting, err)
		}
	}
	return err
}
