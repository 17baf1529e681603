package client

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
)

// Errors of brokers that are reachable but cannot serve a request.
var (
	// ErrLoginRejected: the brokers reject the credentials.
	ErrLoginRejected = errors.New("the brokers reject the login: mechanism, user or password is wrong")
	// ErrOffsetsNotReady: the brokers have not loaded the offsets topic, so committed offsets are unknown. That takes
	// seconds after the first start of a cluster. It lasts for ever if the topic cannot be created, for example with
	// fewer brokers than offsets.topic.replication.factor.
	ErrOffsetsNotReady = errors.New("the brokers are preparing their offsets topic")
	// ErrAccess: the login lacks a right.
	ErrAccess = errors.New("access refused by the brokers")
)

// Refused wraps err with ErrAccess and the right that the login lacks, if brokers have refused an operation for lack of
// it: on the topic, or on the group of the client; empty: unknown.
func Refused(err error, operation, topic, group string) error {
	switch {
	case errors.Is(err, ErrAccess):
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return fmt.Errorf("%w: the login lacks %s on topic %s: %w", ErrAccess, operation, topic, err)
	case errors.Is(err, kerr.GroupAuthorizationFailed) && group != "":
		return fmt.Errorf("%w: the login lacks %s on group %s: %w", ErrAccess, operation, group, err)
	case errors.Is(err, kerr.ClusterAuthorizationFailed) && operation == "Write": // by InitProducerId
		return fmt.Errorf("%w: the login lacks Write on topic %s, and on every other: %w", ErrAccess, topic, err)
	}
	return err
}

// Explain wraps err with ErrLoginRejected or ErrOffsetsNotReady if it is of that kind.
func Explain(err error) error {
	for _, refusal := range []error{kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism, kerr.IllegalSaslState} {
		if errors.Is(err, refusal) {
			return fmt.Errorf("%w: %w", ErrLoginRejected, err)
		}
	}
	for _, soon := range []error{kerr.CoordinatorNotAvailable, kerr.CoordinatorLoadInProgress} {
		if errors.Is(err, soon) {
			return fmt.Errorf("%w: %w", ErrOffsetsNotReady, err)
		}
	}
	return err
}
