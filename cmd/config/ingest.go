package config

import (
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
)

var topicForm = regexp.MustCompile(`^[A-Za-z0-9._-]{1,249}$`)

func validateIngest(c *Config, fault report) {
	g := c.Ingest
	if g.Listen != "" {
		listenAddress("ingest.listen", g.Listen, fault)
		if len(g.Tokens) == 0 && !isLoopback(g.Listen) {
			fault("ingest.listen", g.Listen, "is not on loopback, and ingest.tokens is empty: everyone could write")
		}
		if g.Listen == c.HTTP.Listen {
			fault("ingest.listen", g.Listen, "is taken by http.listen")
		}
	}
	if g.MaxBody < 1<<10 || g.MaxBody > 1<<30 {
		fault("ingest.max_body", g.MaxBody, "want 1KiB to 1GiB")
	}
	if g.Memory < 16<<20 {
		fault("ingest.memory", g.Memory, "want 16MiB or more")
	}
	between("ingest.max_events", g.MaxEvents, 100_000, fault)
	between("ingest.concurrency", g.Concurrency, 10_000, fault)
	seen := map[string]string{}
	for i, t := range g.Tokens {
		at := fmt.Sprintf("ingest.tokens[%d]", i)
		identifier(at+".name", t.Name, seen, fault)
		switch {
		case t.Account == "":
			fault(at+".account", nil, "is missing: a token is for stores of one account")
		case len(t.Stores) == 0:
			fault(at+".stores", nil, "is missing: a token is for the stores that it names")
		default:
			for _, store := range t.Stores {
				c.known(at, t.Account, store, fault)
			}
		}
		if t.Token.IsZero() {
			fault(at+".token", nil, "is missing")
		}
	}
	topics := map[string]string{}
	for i, n := range g.Notifications {
		at := fmt.Sprintf("ingest.notifications[%d]", i)
		switch other, taken := topics[n.Topic]; {
		case n.Topic == "":
			fault(at+".topic", nil, "is missing")
		case !topicForm.MatchString(n.Topic):
			fault(at+".topic", n.Topic, "want 1 to 249 letters, digits, dots, dashes and underscores")
		case taken:
			fault(at+".topic", n.Topic, "is taken by "+other)
		}
		topics[n.Topic] = at + ".topic"
		c.known(at, n.Account, n.Store, fault)
	}
	for i, a := range c.Accounts {
		for j, s := range a.Stores {
			if s.Watch && s.Driver != "file" {
				fault(fmt.Sprintf("accounts[%d].stores[%d].watch", i, j), s.Watch,
					"is for driver file: only directories can be watched")
			}
		}
	}
}

// known checks that the configuration has the account and the store that a setting names.
func (c *Config) known(at, account, store string, fault report) {
	i := slices.IndexFunc(c.Accounts, func(a Account) bool { return a.ID == account })
	switch {
	case account == "" && store != "":
		fault(at+".account", nil, "is missing: stores of several accounts may have one name")
	case account != "" && i < 0:
		fault(at+".account", account, "there is no such account")
	case store != "" && !slices.ContainsFunc(c.Accounts[i].Stores, func(s Store) bool { return s.ID == store }):
		fault(at+".store", store, "account "+account+" has no such store")
	}
}

func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback())
}
