package client_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/millrace/millrace/streams/kafka/client"
)

func TestRefused(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err                     error
		operation, topic, group string
		want                    string // empty: the error itself
	}{
		"topic": {kerr.TopicAuthorizationFailed, "Read", "t", "",
			"access refused by the brokers: the login lacks Read on topic t"},
		"group": {kerr.GroupAuthorizationFailed, "Describe", "", "g",
			"access refused by the brokers: the login lacks Describe on group g"},
		"group of an unknown name": {kerr.GroupAuthorizationFailed, "Read", "t", "", ""},
		"producer id": {kerr.ClusterAuthorizationFailed, "Write", "t", "",
			"access refused by the brokers: the login lacks Write on topic t, and on every other"},
		"another request of the cluster": {kerr.ClusterAuthorizationFailed, "Read", "t", "", ""},
		"another error":                  {kerr.NotLeaderForPartition, "Read", "t", "g", ""},
		"named before": {client.Refused(kerr.TopicAuthorizationFailed, "Write", "t", ""), "Read", "u", "g",
			"access refused by the brokers: the login lacks Write on topic t"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := client.Refused(tc.err, tc.operation, tc.topic, tc.group)
			want := tc.want
			switch {
			case want == "":
				want = tc.err.Error()
			case errors.Is(tc.err, client.ErrAccess):
				want = tc.err.Error()
			default:
				want = fmt.Sprintf("%s: %v", want, tc.err)
			}
			if got.Error() != want || !errors.Is(got, tc.err) || errors.Is(got, client.ErrAccess) != (tc.want != "") {
				t.Errorf("got %v, want %s", got, want)
			}
		})
	}
}
