package config

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestValidateIngest(t *testing.T) {
	const token = `, tokens: [{name: x, account: acme, stores: ["1"], token: "env:T"}`
	for text, want := range map[string]string{ // the fault, after its origin; empty: no fault
		`roles: {ingester: {reserved: 2}}`: "roles.ingester.reserved = 2: notifications have no class low",
		`roles: {ingester: {large: 2}}`:    "roles.ingester.large = 2: notifications have no large class",
		`ingest: {listen: "0.0.0.0:80"}`:   "ingest.listen = 0.0.0.0:80: is not on loopback, and ingest.tokens is empty",
		`ingest: {listen: "[::1]:80"}`:     "",
		`ingest: {listen: "localhost:80"}`: "",
		`ingest: {listen: "127.0.0.1:80"}
http: {listen: "127.0.0.1:80"}`: "ingest.listen = 127.0.0.1:80: is taken by http.listen",
		`ingest: {listen: nowhere` + token + `]}`:       "ingest.listen = nowhere: want host:port",
		`ingest: {listen: "0.0.0.0:80"` + token + `]}`:  "",
		`ingest: {tokens: [{name: x, token: "env:T"}]}`: "ingest.tokens[0].account: is missing",
		`ingest: {tokens: [{name: x, account: absent, stores: ["1"], token: "env:T"}]}`: "ingest." +
			"tokens[0].account = absent: there is no such account",
		`ingest: {tokens: [{name: x, account: acme, stores: ["1"]}]}`:  "ingest.tokens[0].token: is missing",
		`ingest: {tokens: [{name: x, account: acme, token: "env:T"}]}`: "ingest.tokens[0].stores: is missing",
		`ingest: {tokens: [{name: x, account: acme, stores: ["1", "9"], token: "env:T"}]}`: "ingest.tokens[0].store = 9: " +
			"account acme has no such store",
		`ingest: {tokens: [{account: acme, stores: ["1"], token: "env:T"}]}`: "ingest.tokens[0].name: is missing",
		`ingest: {max_events: 1000` + token + `, {name: x, account: acme, stores: ["1"], token: "env:U"}]}`: "ingest." +
			"tokens[1].name = x: is taken by ingest.tokens[0].name",
		`ingest: {max_body: 100B}`:                   "ingest.max_body = 100B: want 1KiB to 1GiB",
		`ingest: {max_events: 0}`:                    "ingest.max_events = 0: want 1 to 100000",
		`ingest: {memory: 1MiB}`:                     "ingest.memory = 1MiB: want 16MiB or more",
		`ingest: {concurrency: 0}`:                   "ingest.concurrency = 0: want 1 to 10000",
		`ingest: {notifications: [{account: acme}]}`: "ingest.notifications[0].topic: is missing",
		`ingest: {notifications: [{topic: a/b}]}`: "ingest.notifications[0].topic = a/b: " +
			"want 1 to 249 letters",
		`ingest: {notifications: [{topic: t}, {topic: t}]}`: "ingest.notifications[1].topic = t: " +
			"is taken by ingest.notifications[0].topic",
		`ingest: {notifications: [{topic: t, store: "1"}]}`: "ingest.notifications[0].account: is missing",
		`ingest: {notifications: [{topic: t, account: acme, store: "9"}]}`: "ingest.notifications[0].store = 9: " +
			"account acme has no such store",
		`ingest: {notifications: [{topic: t}, {topic: u, account: acme}, ` +
			`{topic: v, account: acme, store: "1"}, {topic: w}]}`: "",
	} {
		t.Run(text, func(t *testing.T) {
			_, _, err := load(t, twoStores+text+"\n")
			if want == "" {
				if err != nil {
					t.Errorf("got %v", err)
				}
				return
			}
			var faults Faults
			if !errors.As(err, &faults) || len(faults) != 1 || !strings.Contains(faults[0].String(), ": "+want) {
				t.Errorf("got %v, want %s", err, want)
			}
		})
	}
}

// Load reads what Save writes, including the references of secrets.
func TestSaveLoadRoundTrip(t *testing.T) {
	want := Default()
	want.Accounts = []Account{{ID: "a", Stores: []Store{Store{ID: "1", Root: "/a", Watch: true}.withDefaults()}}}
	want.Accounts[0].Stores = append(want.Accounts[0].Stores, Store{ID: "2", Driver: "s3",
		Endpoint: "http://[::1]:9", BucketPrefix: "b-",
		Credentials: Credentials{AccessKey: FileSecret("/a b/key"), SecretKey: Secret{"env:K"}}}.withDefaults())
	want.ClickHouse.Password = Secret{"exec:pass show \"it\""}
	want.Ingest.Listen = "0.0.0.0:8080"
	want.Ingest.Tokens = []Token{{"x", "a", []string{"1", "2"}, Secret{"env:X"}},
		{"y", "a", []string{"1"}, Secret{"file:/y"}}}
	want.Ingest.Notifications = []Notification{{"t", "a", "1"}}
	var b strings.Builder
	must(t, Save(&b, &want))
	got, _, err := load(t, b.String())
	if err != nil || !reflect.DeepEqual(*got, want) {
		t.Errorf("got %+v, %v of\n%s", got, err, b.String())
	}
}
