package app

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/client"
)

// A Scope selects the work that a pause affects. An empty field matches everything; a piece with a
// sweep has no other field.
type Scope struct {
	Role           schemas.Role
	Account, Store string
	Sweep          string
}

// ScopeOf returns the work that c affects.
func ScopeOf(c *pb.Control) Scope {
	return Scope{schemas.Role(c.GetRole()), c.GetAccount(), c.GetStore(), c.GetSweep()}
}

// args returns p as arguments of 'millrace pause'.
func (p Scope) args() []string {
	where := strings.TrimSuffix(p.Account+"/"+p.Store, "/")
	switch {
	case p == Scope{}:
		return []string{"all"}
	case p.Sweep != "":
		return []string{"sweep", p.Sweep}
	case p.Account == "" && p.Store == "":
		return []string{"role", string(p.Role)}
	case p.Role != "":
		return []string{"pair", string(p.Role), where}
	case p.Store == "":
		return []string{"account", p.Account}
	}
	return []string{"store", where}
}

func (p Scope) String() string { return strings.Join(p.args(), " ") }

// An UnknownNameError reports a name that does not exist, and the names that do.
type UnknownNameError struct {
	kind  string // role, sweep, account or store
	Name  string // of a store ACCOUNT/STORE
	Known []string
}

func (e *UnknownNameError) Error() string { return fmt.Sprintf("there is no %s %q", e.kind, e.Name) }

// Controls pause and resume work, and set the number of workers of roles. They need only Kafka.
// Running processes apply a change within a second after a method has returned.
type Controls struct {
	cfg      *config.Config
	kafka    client.Config
	producer *kafka.Producer
}

// OpenControls returns Controls. It does not connect yet. The caller closes them.
func OpenControls(ctx context.Context, cfg *config.Config, log *slog.Logger) (*Controls, error) {
	k, err := kafkaConfig(ctx, cfg, log)
	if err != nil {
		return nil, err
	}
	p, err := kafka.NewProducer(k, "millrace")
	if err != nil {
		return nil, fmt.Errorf("make the producer: %w", err)
	}
	return &Controls{cfg: cfg, kafka: k, producer: p}, nil
}

// Close ends the connections.
func (c *Controls) Close() { c.producer.Close() }

// Active returns the pauses, and the roles with a set number of workers.
func (c *Controls) Active(ctx context.Context) (in []*pb.Control, err error) {
	err = withFollowedControls(ctx, c.kafka, func(_ context.Context, k *client.Controls) error {
		in = k.Active()
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the control topic: %w", err)
	}
	return in, nil
}

// Pause pauses p until a time; the zero time means until Resume. It replaces an earlier pause of p.
func (c *Controls) Pause(ctx context.Context, p Scope, until time.Time, by Actor) error {
	if err := c.check(p); err != nil {
		return err
	}
	return c.set(ctx, "pause", p, by, func(ctl *pb.Control) {
		ctl.Paused, ctl.Until = true, nil
		if !until.IsZero() {
			ctl.Until = timestamppb.New(until)
		}
		setActor(ctl, by)
	})
}

// Resume ends the pause of p, and reports whether there was one. Other pauses stay.
func (c *Controls) Resume(ctx context.Context, p Scope, by Actor) (was bool, err error) {
	in, err := c.Active(ctx)
	if err != nil {
		return false, err
	}
	if !slices.ContainsFunc(in, func(ctl *pb.Control) bool { return ScopeOf(ctl) == p && ctl.GetPaused() }) {
		return false, c.check(p) // a paused piece can be resumed even if it was removed from the configuration
	}
	return true, c.set(ctx, "resume", p, by, func(ctl *pb.Control) {
		ctl.Paused, ctl.Until = false, nil
		setActor(ctl, by)
	})
}

// SetWorkers sets the number of workers of a role in each process; 0 restores the configured
// number.
func (c *Controls) SetWorkers(ctx context.Context, role schemas.Role, n int32, by Actor) error {
	sized := []schemas.Role{schemas.RoleCopier, schemas.RoleDeleter, schemas.RoleChecker}
	if !slices.Contains(sized, role) {
		return &UnknownNameError{"role with workers", string(role), names(sized)}
	}
	return c.set(ctx, "workers", Scope{Role: role}, by, func(ctl *pb.Control) {
		ctl.Workers = n
		if !ctl.GetPaused() { // a paused role keeps the name of the operator who paused it
			setActor(ctl, by)
		}
	})
}

func setActor(ctl *pb.Control, by Actor) {
	ctl.By, ctl.Reason, ctl.Time = by.Who, by.Reason, timestamppb.Now()
}

// set applies change to the present control of p, and publishes the result together with an admin
// action. Of two concurrent calls the later one wins.
func (c *Controls) set(ctx context.Context, action string, p Scope, by Actor, change func(*pb.Control)) error {
	in, err := c.Active(ctx)
	if err != nil {
		return err
	}
	before := &pb.Control{Role: string(p.Role), Account: p.Account, Store: p.Store, Sweep: p.Sweep}
	if i := slices.IndexFunc(in, func(ctl *pb.Control) bool { return ScopeOf(ctl) == p }); i >= 0 {
		before = in[i]
	}
	after := proto.CloneOf(before)
	after.Id = schemas.NewID()
	change(after)
	done := by.action(action, p.String())
	done.Account, done.Store = p.Account, p.Store
	done.Before, done.After = describeControl(before), describeControl(after)
	err = c.producer.Publish(ctx, schemas.Message{Topic: schemas.Controls, Body: after},
		schemas.Message{Topic: schemas.Admin, Body: done})
	if err != nil {
		return fmt.Errorf("%s %s: the result is unknown; repeating it is safe: %w", action, p, err)
	}
	return nil
}

// describeControl returns c as text.
func describeControl(c *pb.Control) string {
	s := "running"
	if c.GetPaused() {
		s = "paused"
	}
	if c.GetUntil() != nil {
		s += " until " + c.GetUntil().AsTime().Format(time.RFC3339)
	}
	if n := c.GetWorkers(); n > 0 {
		s += fmt.Sprintf(", %d workers", n)
	}
	return s
}

// check returns an error for a name that the configuration or this program does not have.
func (c *Controls) check(p Scope) error {
	roles := append(Roles(), schemas.RoleState)
	if p.Role != "" && !slices.Contains(roles, p.Role) {
		return &UnknownNameError{"role", string(p.Role), names(roles)}
	}
	if known := append(Sweeps(), Jobs()...); p.Sweep != "" && !slices.Contains(known, p.Sweep) {
		return &UnknownNameError{"sweep or job", p.Sweep, known}
	}
	var accounts, stores []string
	for _, a := range c.cfg.Accounts {
		accounts = append(accounts, a.ID)
		for _, s := range a.Stores {
			stores = append(stores, a.ID+"/"+s.ID)
		}
	}
	if p.Store != "" && !slices.Contains(stores, p.Account+"/"+p.Store) {
		return &UnknownNameError{"store", p.Account + "/" + p.Store, stores}
	}
	if p.Account != "" && !slices.Contains(accounts, p.Account) {
		return &UnknownNameError{"account", p.Account, accounts}
	}
	return nil
}

func names(roles []schemas.Role) (s []string) {
	for _, r := range roles {
		s = append(s, string(r))
	}
	return s
}

// withFollowedControls reads the control topic and keeps following it while do runs. do starts when
// the controls are read.
func withFollowedControls(
	ctx context.Context, cfg client.Config, do func(context.Context, *client.Controls) error,
) error {
	c, err := kafka.NewControls(cfg)
	if err != nil {
		return err
	}
	return withTable(ctx, c, func(ctx context.Context) error { return do(ctx, c) })
}

// withControls runs do with the controls of the process or, if the process does not run, with
// controls that follow the topic during do.
func (a *App) withControls(ctx context.Context, do func(context.Context, *client.Controls) error) error {
	select {
	case <-a.controls.Ready():
		return do(ctx, a.controls)
	default:
		return withFollowedControls(ctx, a.kafka, do)
	}
}

// afterControls delays p until the pauses, the accounts and the open incidents have been read.
func (a *App) afterControls(p part) part {
	return part{p.name, func(ctx context.Context) error {
		if err := ready(ctx, a.controls, a.accounts, a.incidents); err != nil {
			return err
		}
		return p.run(ctx)
	}}
}
