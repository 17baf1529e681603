package config

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func other(id string, s Store) Account {
	s.ID = "1"
	return Account{ID: id, Stores: []Store{s.withDefaults()}}
}

// All faults of a document are reported at once, with line and column, also those that other accounts cause.
func TestParseAccountFaults(t *testing.T) {
	others := []Account{other("other", Store{Root: "/srv/other"}),
		other("bucket", Store{Driver: "s3", Endpoint: "https://s3.example", Bucket: "archive", Prefix: "a"})}
	tests := map[string]struct {
		document string
		want     []string // parts of the faults, in their order
	}{
		"none": {"id: acme\nstores: [{id: \"1\", root: /srv/acme}]\n", nil},
		"JSON": {`{"id": "acme", "stores": [{"id": "1", "root": "/srv/acme"}]}`, nil},
		"several, of syntax and meaning": {"id: acme\nstores:\n  - {id: \"1\", rooot: /srv/acme}\n" +
			"  - {id: \"1\", root: srv, repair: maybe}\n",
			[]string{"f:3:15: stores[0].rooot: unknown setting; did you mean root?", "f:4:6: stores[1].id = 1: is taken by",
				"f:4:15: stores[1].root = srv: want an absolute path", "f:4:26: stores[1].repair = maybe: want one of"}},
		"not YAML":  {"id: [", []string{"f:1: is not YAML"}},
		"no stores": {"id: acme\n", []string{"f: stores: is empty"}},
		"the id is taken": {"id: other\nstores: [{id: \"1\", root: /srv/acme}]\n",
			[]string{"f:1:1: id = other: is taken by"}},
		"an id with a sign": {"id: a/b\nstores: [{id: \"1\", root: /srv/acme}]\n", []string{"f:1:1: id = a/b: want letters"}},
		"inside the root of another account": {"id: acme\nstores: [{id: \"1\", root: /srv/other/in}]\n",
			[]string{"f:2:20: stores[0].root = /srv/other/in: is the same location as store other/1.root: "}},
		"the root of another account is inside": {"id: acme\nstores: [{id: \"1\", root: /srv}]\n",
			[]string{"is the same location as store other/1"}},
		"inside another of its own": {"id: acme\nstores: [{id: \"1\", root: /a}, {id: \"2\", root: /a/b}]\n",
			[]string{"f:2:41: stores[1].root = /a/b: is the same location as store acme/1"}},
		"keys of another account": {"id: acme\nstores: [{id: \"1\", driver: s3, " +
			"endpoint: https://s3.example, bucket: archive, prefix: a/b}]\n",
			[]string{"is the same location as store bucket/1: stores must not share keys"}},
		"the whole bucket of another account": {"id: acme\nstores: [{id: \"1\", driver: s3, " +
			"endpoint: https://s3.example, bucket: archive}]\n",
			[]string{"is the same location as store bucket/1: stores must not share keys"}},
		"a bucket of a store with a bucket for each space": {"id: acme\nstores: [{id: \"1\", driver: s3, " +
			"endpoint: https://s3.example, bucket_prefix: a-}, {id: \"2\", driver: s3, endpoint: https://s3.example, " +
			"bucket: a-photos}, {id: \"3\", driver: s3, endpoint: https://s3.example, bucket: photos}, " +
			"{id: \"4\", driver: s3, endpoint: https://s3.example, bucket_prefix: pho}]\n",
			[]string{"stores[1].bucket = a-photos: is the same location as store acme/1",
				"stores[3].bucket_prefix = pho: is the same location as store acme/3"}},
		"a secret that is no reference": {"id: acme\nstores: [{id: \"1\", driver: s3, " +
			"endpoint: https://s3.example, bucket: other, credentials: {access_key: \"env:A\", secret_key: hunter2}}]\n",
			[]string{"stores[0].credentials.secret_key: want a reference to the secret, never the secret itself"}},
		"a command": {"id: acme\nstores: [{id: \"1\", driver: s3, " +
			"endpoint: https://s3.example, bucket: other, credentials: {access_key: \"env:A\", secret_key: \"exec:pass\"}}]\n",
			[]string{"stores[0].credentials.secret_key: exec:COMMAND is not allowed in the topic of accounts"}},
		"two primaries": {"id: acme\nstores: [{id: \"1\", root: /a, primary: true}, {id: \"2\", root: /b, primary: true}]\n",
			[]string{"stores[1].primary = true: an account has one primary store, which is store acme/1"}},
		"active is no text": {"id: acme\nactive: maybe\nstores: [{id: \"1\", root: /a}]\n",
			[]string{"f:2:1: active = maybe: want true or false"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, faults := ParseAccount("f", []byte(tt.document), &Config{Accounts: others})
			if len(faults) != len(tt.want) {
				t.Fatalf("got %d faults, want %d: %v", len(faults), len(tt.want), faults)
			}
			for i, f := range faults {
				if got := f.String(); !strings.Contains(got, tt.want[i]) || strings.Contains(got, "hunter2") {
					t.Errorf("fault %d: got %q, want %q", i, got, tt.want[i])
				}
			}
		})
	}
}

// A document is read as it was written, in both forms, with its references.
func TestAccountForms(t *testing.T) {
	const text = `id: acme
stores:
- id: "1"
  driver: file
  root: /srv/a
  primary: true
- id: "2"
  driver: s3
  endpoint: https://s3.example
  bucket: archive
  credentials:
    access_key: env:A
    secret_key: file:/run/secret
  read: sampled
  repair: approve
  external_writes: expected
  corrections: auto
  limits:
    tasks: 4
    bytes_per_second: 200MB
- id: "3"
  driver: file
  root: /srv/plain
  layout: plain
  expect: bagit.txt
limits:
  tasks_per_second: 7
active: false
`
	a, faults := ParseAccount("f", []byte(text), &Config{})
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	if got, err := a.YAML(); err != nil || got != text {
		t.Errorf("got %v\n%s", err, got)
	}
	content, err := json.Marshal(a)
	must(t, err)
	d, err := (AccountTopic{}).ReadAccount("acme", string(content))
	if err != nil || !d.Equal(a) || d.Faults != nil || !reflect.DeepEqual(d.Account, a) {
		t.Errorf("got %v, %+v from %s", err, d, content)
	}
	if text := fmt.Sprintf("%v %+v %#v", a, a, a); strings.Contains(text, "/run/secret") {
		t.Errorf("printed: %s", text)
	}
}

// What one version accepted, another one does not refuse: only the stores that it is about cannot be used.
func TestReadAccountOfAnotherVersion(t *testing.T) {
	const in = `{"id": "acme", "stores": [{"id": "1", "root": "/a"}, {"id": "2", "driver": "azure"},
		{"id": "3", "root": "/c"%s}]%s}`
	tests := map[string]struct {
		store, account string
		want           string // the stores with faults
	}{
		"a driver":               {"", "", "2"},
		"a setting of a store":   {`, "colour": "red"`, "", "2 3"},
		"a setting of the whole": {"", `, "colour": "red"`, "1 2 3"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d, err := (AccountTopic{}).ReadAccount("acme", fmt.Sprintf(in, tt.store, tt.account))
			if err != nil || len(d.Stores) != 3 {
				t.Fatalf("got %v, %+v", err, d)
			}
			var got []string
			for _, s := range d.Stores {
				if d.Faults[s.ID] != nil {
					got = append(got, s.ID)
				}
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("got %q, want %q: %v", got, tt.want, d.Faults)
			}
		})
	}
	const command = `{"id": "acme", "stores": [{"id": "1", "root": "/a"}, {"id": "2", "driver": "s3",
		"endpoint": "https://s3.example", "bucket": "other",
		"credentials": {"access_key": "env:A", "secret_key": "exec:sh"}}]}`
	for allow, faulty := range map[bool]int{false: 1, true: 0} {
		d, err := AccountTopic{AllowExec: allow}.ReadAccount("acme", command)
		if err != nil || len(d.Faults) != faulty || (d.Faults["2"] == nil) != allow {
			t.Errorf("allow_exec: %t: got %v, faults %v", allow, err, d.Faults)
		}
	}
	for name, document := range map[string]string{"not JSON": "{", "of another account": `{"id": "other"}`} {
		if _, err := (AccountTopic{}).ReadAccount("acme", document); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
