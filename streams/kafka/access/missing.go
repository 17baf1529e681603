package access

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/client"
)

// A MissingError names the rights that a login lacks. It wraps client.ErrAccess.
type MissingError struct {
	User   string // empty: the login has no user name, such as a client certificate
	Rights []Right
}

// Error implements error.
func (e *MissingError) Error() string {
	all := make([]string, len(e.Rights))
	for i, r := range e.Rights {
		all[i] = r.String()
	}
	who, principal := "the login", "PRINCIPAL"
	if e.User != "" {
		who, principal = "user "+e.User, "User:"+e.User
	}
	text := fmt.Sprintf("%s lacks these Kafka rights: %s", who, strings.Join(all, ", "))
	if e.Rights[0].Name == "" { // of an empty prefix: kafka-acls.sh has no way to say that
		return text
	}
	return fmt.Sprintf("%s (such as kafka-acls.sh --add --allow-principal %s %s)",
		text, principal, e.Rights[0].arguments())
}

// Unwrap returns client.ErrAccess.
func (*MissingError) Unwrap() error { return client.ErrAccess }

// describeGroups is the newest version of DescribeGroups that reports the operations on groups without members.
const describeGroups = 5

// Check returns a *MissingError with those of rights that the brokers say the login lacks. Any other error means that
// some rights could not be checked. Topics that do not exist are not checked, nor is anything by brokers that report no
// operations; brokers without an authorizer report all.
func Check(ctx context.Context, cfg client.Config, rights []Right) error {
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(int16(kmsg.DescribeGroups), describeGroups)
	opts, err := cfg.Options("access", kgo.MaxVersions(versions))
	if err != nil {
		return err
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return fmt.Errorf("kafka: new client: %w", err)
	}
	defer cl.Close()
	p := probe{cfg: cfg, may: map[resource]int32{}}
	err = errors.Join(p.topics(ctx, cl, rights), p.groups(ctx, cl, rights))
	if lacks := p.missing(rights); len(lacks) > 0 {
		user := ""
		if cfg.SASL != nil {
			user = cfg.SASL.User
		}
		return &MissingError{user, lacks}
	}
	if err != nil {
		return client.Explain(err)
	}
	return nil
}

type resource struct {
	kind Resource
	name string
}

// A probe holds the operations that the brokers permit on resources, as bits. Resources of which they are not known
// are absent.
type probe struct {
	cfg client.Config
	may map[resource]int32
}

// names returns the resources that show whether the login has r.
func (p probe) names(r Right) (names []string) {
	switch {
	case !r.Prefixed:
		return []string{r.Name}
	case r.Resource == Topic:
		for _, e := range schemas.Catalogue(p.cfg.LaneNames()...) {
			if name := p.cfg.Topic(e.Topic); strings.HasPrefix(name, r.Name) {
				names = append(names, name)
			}
		}
		return names
	}
	for _, e := range schemas.Catalogue() {
		for _, role := range e.Readers {
			names = append(names, p.cfg.Group(role, client.ClassOf(e, role)))
		}
	}
	return names
}

// all returns the names of all resources of a kind that rights are about.
func (p probe) all(kind Resource, rights []Right) (names []string) {
	for _, r := range rights {
		if r.Resource == kind {
			names = append(names, p.names(r)...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// missing returns the rights that are known to be missing on some resource.
func (p probe) missing(rights []Right) (lacks []Right) {
	for _, r := range rights {
		if slices.ContainsFunc(p.names(r), func(name string) bool {
			may, known := p.may[resource{r.Resource, name}]
			return known && may&operationBit(r.Operation) == 0
		}) {
			lacks = append(lacks, r)
		}
	}
	return lacks
}

func operationBit(name string) int32 {
	op, err := kmsg.ParseACLOperation(name)
	if err != nil {
		panic(err) // a constant of this package
	}
	return 1 << op
}

// set records the operations that the brokers reported for a resource.
func (p probe) set(kind Resource, name string, bits int32) {
	if bits != 0 && bits != math.MinInt32 { // neither is reported by brokers that know the operations
		p.may[resource{kind, name}] = bits
	}
}

// deny records that the login may not describe a resource. Then it has no right that implies Describe, and the others
// are not known.
func (p probe) deny(kind Resource, name string) {
	lacks := int32(0)
	for _, o := range []string{Describe, Read, Write, Delete} {
		lacks |= operationBit(o)
	}
	p.may[resource{kind, name}] = ^lacks
}

func (p probe) topics(ctx context.Context, cl *kgo.Client, rights []Right) error {
	names := p.all(Topic, rights)
	if len(names) == 0 {
		return nil // without names the request would be for all topics
	}
	req := kmsg.NewPtrMetadataRequest()
	req.IncludeTopicAuthorizedOperations = true
	for i := range names {
		req.Topics = append(req.Topics, kmsg.MetadataRequestTopic{Topic: &names[i]})
	}
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return fmt.Errorf("look up topics: %w", err)
	}
	for _, t := range resp.Topics {
		switch err := kerr.ErrorForCode(t.ErrorCode); {
		case t.Topic == nil:
		case errors.Is(err, kerr.TopicAuthorizationFailed):
			p.deny(Topic, *t.Topic)
		case err == nil:
			p.set(Topic, *t.Topic, t.AuthorizedOperations)
		}
	}
	return nil
}

func (p probe) groups(ctx context.Context, cl *kgo.Client, rights []Right) error {
	var errs []error
	for _, name := range p.all(Group, rights) { // one by one: a coordinator lookup fails for all if it does for one
		req := kmsg.NewPtrDescribeGroupsRequest()
		req.Groups, req.IncludeAuthorizedOperations = []string{name}, true
		resp, err := req.RequestWith(ctx, cl)
		if errors.Is(err, kerr.GroupAuthorizationFailed) {
			p.deny(Group, name)
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("describe group %s: %w", name, err))
			continue
		}
		for _, g := range resp.Groups {
			switch err := kerr.ErrorForCode(g.ErrorCode); {
			case errors.Is(err, kerr.GroupAuthorizationFailed):
				p.deny(Group, name)
			case err == nil:
				p.set(Group, name, g.AuthorizedOperations)
			}
		}
	}
	return errors.Join(errs...)
}
