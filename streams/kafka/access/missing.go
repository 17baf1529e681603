package access

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

// A GroupsUncheckedError names the groups on which the rights could not be checked. The rights on topics were.
type GroupsUncheckedError struct {
	Groups []string
	// Err is the cause. It wraps client.ErrOffsetsNotReady if the brokers are preparing their offsets topic, as they do
	// for the first seconds of a new cluster.
	Err error
}

// Error implements error.
func (e *GroupsUncheckedError) Error() string {
	return fmt.Sprintf("describe groups %s: %v", strings.Join(e.Groups, ", "), e.Err)
}

// Unwrap returns the cause.
func (e *GroupsUncheckedError) Unwrap() error { return e.Err }

// describeGroups is the newest version of DescribeGroups that reports the operations on groups without members.
const describeGroups = 5

// Check returns a *MissingError with those of rights that the brokers say the login lacks. Any other error means that
// some rights could not be checked: those on groups if it is a *GroupsUncheckedError, otherwise all. Topics that do not
// exist are not checked, nor is anything by brokers that report no operations; brokers without an authorizer report
// all.
func Check(ctx context.Context, cfg client.Config, rights []Right) error {
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(int16(kmsg.DescribeGroups), describeGroups)
	cl, err := cfg.NewClient("access", kgo.MaxVersions(versions))
	if err != nil {
		return err
	}
	defer cl.Close()
	p := probe{cfg: cfg, may: map[resource]int32{}}
	if err := p.topics(ctx, cl, rights); err != nil {
		return client.Explain(err)
	}
	err = p.groups(ctx, cl, rights)
	if lacks := p.missing(rights); len(lacks) > 0 {
		user := ""
		if cfg.SASL != nil {
			user = cfg.SASL.User
		}
		return &MissingError{user, lacks}
	}
	return err
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

// groups asks for all groups at once: one request finds the coordinators, and each coordinator describes its groups.
func (p probe) groups(ctx context.Context, cl *kgo.Client, rights []Right) error {
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups, req.IncludeAuthorizedOperations = p.all(Group, rights), true
	if len(req.Groups) == 0 {
		return nil
	}
	failed := failedGroups{}
	for _, shard := range cl.RequestSharded(ctx, req) { // the error of one group is not that of the others
		if shard.Err != nil {
			for _, name := range shard.Req.(*kmsg.DescribeGroupsRequest).Groups {
				failed[name] = shard.Err
			}
			continue
		}
		for _, g := range shard.Resp.(*kmsg.DescribeGroupsResponse).Groups {
			if err := kerr.ErrorForCode(g.ErrorCode); err != nil {
				failed[g.Group] = err
				continue
			}
			p.set(Group, g.Group, g.AuthorizedOperations)
		}
	}
	maps.DeleteFunc(failed, func(name string, err error) bool {
		refused := errors.Is(err, kerr.GroupAuthorizationFailed)
		if refused {
			p.deny(Group, name)
		}
		return refused
	})
	return failed.err()
}

// failedGroups are the groups that could not be described.
type failedGroups map[string]error

// err returns a *GroupsUncheckedError, or nil if there are none. It wraps client.ErrOffsetsNotReady only if that
// is the cause for all of them.
func (f failedGroups) err() error {
	if len(f) == 0 {
		return nil
	}
	e := &GroupsUncheckedError{Groups: slices.Sorted(maps.Keys(f))}
	for _, name := range e.Groups {
		if err := client.Explain(f[name]); e.Err == nil || !errors.Is(err, client.ErrOffsetsNotReady) {
			e.Err = err
		}
	}
	return e
}
