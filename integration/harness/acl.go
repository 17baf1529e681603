package harness

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/streams/kafka/client"
)

// PasswordOf returns the password of one of Options.Users.
func PasswordOf(user string) string { return "secret-" + user }

// login returns the login of the harness's client on brokers with users.
func (o Options) login() *client.SASL {
	if len(o.Users) == 0 {
		return nil
	}
	return &client.SASL{Mechanism: "PLAIN", User: User, Password: Password}
}

// accessProperties returns broker settings for Users.
func (o Options) accessProperties() map[string]string {
	if len(o.Users) == 0 {
		return nil
	}
	jaas := fmt.Sprintf("org.apache.kafka.common.security.plain.PlainLoginModule required user_%s=%q", User, Password)
	for _, user := range o.Users {
		jaas += fmt.Sprintf(" user_%s=%q", user, PasswordOf(user))
	}
	return map[string]string{
		"listener.security.protocol.map":               "CLIENT:SASL_PLAINTEXT,PEER:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"listener.name.client.sasl.enabled.mechanisms": "PLAIN",
		"listener.name.client.plain.sasl.jaas.config":  jaas + ";",
		"authorizer.class.name":                        "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"super.users":                                  "User:" + User + ";User:ANONYMOUS", // the brokers are anonymous
	}
}

// An ACL permits operations on topics or groups to a user. It is what one call of kafka-acls.sh adds.
type ACL struct {
	User           string
	Operation      string
	Prefixed       bool
	Topics, Groups []string
}

// ParseACL returns the ACL that kafka-acls.sh adds with these arguments.
func ParseACL(args []string) (a ACL, err error) {
	add := false
	for i := 0; i < len(args); i++ {
		if args[i] == "--add" {
			add = true
			continue
		}
		if i+1 == len(args) {
			return a, fmt.Errorf("%s has no value", args[i])
		}
		option, value := args[i], args[i+1]
		i++
		switch option {
		case "--bootstrap-server", "--command-config":
		case "--allow-principal":
			a.User = strings.TrimPrefix(value, "User:")
		case "--operation":
			a.Operation = value
		case "--resource-pattern-type":
			a.Prefixed = value == "prefixed"
		case "--topic":
			a.Topics = append(a.Topics, value)
		case "--group":
			a.Groups = append(a.Groups, value)
		default:
			return a, fmt.Errorf("unknown option %s", option)
		}
	}
	if !add || a.User == "" || a.Operation == "" || len(a.Topics)+len(a.Groups) == 0 {
		return a, fmt.Errorf("not a complete command: %q", args)
	}
	return a, nil
}

func (a ACL) builder() (*kadm.ACLBuilder, error) {
	op, err := kmsg.ParseACLOperation(a.Operation)
	if err != nil {
		return nil, err
	}
	b := kadm.NewACLs().Allow("User:" + a.User).AllowHosts("*").Operations(op).ResourcePatternType(kadm.ACLPatternLiteral)
	if a.Prefixed {
		b.ResourcePatternType(kadm.ACLPatternPrefixed)
	}
	if len(a.Topics) > 0 {
		b.Topics(a.Topics...)
	}
	if len(a.Groups) > 0 {
		b.Groups(a.Groups...)
	}
	return b, nil
}

// Grant adds an ACL.
func (c *Cluster) Grant(t testing.TB, a ACL) {
	t.Helper()
	c.change(t, "grant", a, func(ctx context.Context, adm *kadm.Client, b *kadm.ACLBuilder) error {
		made, err := adm.CreateACLs(ctx, b)
		for _, m := range made {
			if m.Err != nil {
				err = m.Err
			}
		}
		return err
	})
}

// Withdraw removes an ACL, which must exist.
func (c *Cluster) Withdraw(t testing.TB, a ACL) {
	t.Helper()
	c.change(t, "withdraw", a, func(ctx context.Context, adm *kadm.Client, b *kadm.ACLBuilder) error {
		gone, err := adm.DeleteACLs(ctx, b)
		n := 0
		for _, g := range gone {
			if g.Err != nil {
				err = g.Err
			}
			n += len(g.Deleted)
		}
		if want := len(a.Topics) + len(a.Groups); err == nil && n != want {
			err = fmt.Errorf("%d were removed, want %d", n, want)
		}
		return err
	})
}

func (c *Cluster) change(
	t testing.TB, what string, a ACL, do func(context.Context, *kadm.Client, *kadm.ACLBuilder) error,
) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callLimit)
	defer cancel()
	b, err := a.builder()
	if err == nil {
		err = c.admin(func(adm *kadm.Client) error { return do(ctx, adm, b) })
	}
	if err != nil {
		t.Fatalf("%s %+v: %v", what, a, err)
	}
}
