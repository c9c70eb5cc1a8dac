package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane"
	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/raftstore/seal"
)

func initCommand() *cobra.Command {
	var (
		dir, from, operator string
		replicas, routers   []string
		hosts               []string
	)
	cmd := &cobra.Command{
		Use:   "init --dir DIR --replica ID=HOST:PORT...",
		Short: "Create the keys of a cluster, of another replica, or of a router",
		Args:  cobra.NoArgs,
		Long: `Init creates a certificate authority and, below DIR, one directory per replica:
ca.crt, ca.key, node.crt, node.key, seal.key (which decrypts the secrets in the
control store) and replica.json (the replica's id and the cluster's first
members). DIR/operator contains a client certificate for the operator. HOST:PORT
is the replica's peer port, as other replicas and hosts reach it.

With --ca it creates the directory of another replica of an existing cluster.
Start that replica, then run berth raft add-peer: it votes once it is stable, or takes
the place of one that is dead. If no replica is left to add it, start the cluster
again: set BERTH_PEERS to all replicas on each of them.

With --ca and --router it creates the directory of a router of databases, for
controlplane router: ca.crt, node.crt, node.key and router.json, and no other key.
The replicas that it asks are those given, or those that the cluster began with.

Certificates of replicas, hosts and routers are valid for 30 days and renew themselves
while they run. With --ca and --host it creates another certificate for a host, and with
--router for a router, whose own has expired, or that was off while the CA was
exchanged (controlplane ca): copy ca.crt, node.crt and node.key to its directory and
restart it. With --ca and --operator it creates DIR/operator with another certificate for
an operator; those are valid for 3 years and do not renew themselves.

Existing files are never overwritten. Anyone who has ca.key can impersonate any
part of the cluster: only root and the service should be able to read these
directories.`,
		Example: `  controlplane init --dir pki --replica a=10.0.0.1:7001 --replica b=10.0.0.2:7001 --replica c=10.0.0.3:7001
  controlplane init --dir pki --ca pki/a --replica d=10.0.0.4:7001
  controlplane init --dir pki --ca pki/a --router r1
  controlplane init --dir new --ca pki/a --host h1
  controlplane init --dir new --ca pki/a --operator ann`,
	}
	f := cmd.Flags()
	f.StringVar(&dir, "dir", "", "directory to write to (required)")
	f.StringArrayVar(&replicas, "replica", nil, "a replica, ID=HOST:PORT; once per replica (required)")
	f.StringArrayVar(&routers, "router", nil, "name of a router of databases; with --ca")
	f.StringArrayVar(&hosts, "host", nil, "id of a host whose certificate has expired; with --ca")
	f.StringVar(&from, "ca", "", "directory of an existing replica of the cluster")
	f.StringVar(&operator, "operator", "admin", "name on the operator's certificate")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		operators := from != "" && cmd.Flags().Changed("operator")
		if dir == "" || len(replicas) == 0 && len(routers) == 0 && len(hosts) == 0 && !operators {
			return errors.New("init needs --dir and at least one --replica; see controlplane init --help")
		}
		var members []pki.Member
		for _, r := range replicas {
			m, err := controlplane.ParseMember(r)
			if err != nil {
				return fmt.Errorf("--replica: %w", err)
			}
			members = append(members, m)
		}
		now := time.Now()
		if operators {
			if err := pki.AddOperator(dir, from, operator, now); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "operator %s: %s\n", operator, filepath.Join(dir, pki.FileOperatorDir))
			if len(hosts) == 0 && len(routers) == 0 && len(members) == 0 {
				return nil
			}
		}
		if len(hosts) > 0 {
			if err := addHosts(cmd.OutOrStdout(), dir, from, hosts, now); err != nil || len(routers) == 0 && len(members) == 0 {
				return err
			}
		}
		if len(routers) > 0 {
			return addRouters(cmd.OutOrStdout(), dir, from, routers, members, now)
		}
		if from == "" {
			if err := pki.ValidName(operator); err != nil {
				return fmt.Errorf("--operator: %w", err)
			}
			sealKey, err := newSealKey()
			if err != nil {
				return err
			}
			if err := pki.InitCluster(dir, members, operator, sealKey, now); err != nil {
				return err
			}
		} else {
			for _, m := range members {
				if err := pki.AddReplica(dir, from, m, now); err != nil {
					return err
				}
			}
		}
		for _, m := range members {
			fmt.Fprintf(cmd.OutOrStdout(), "replica %s at %s: %s\n", m.ID, m.Address, filepath.Join(dir, m.ID))
		}
		if from == "" {
			fmt.Fprintf(cmd.OutOrStdout(), "operator %s: %s\n", operator, filepath.Join(dir, pki.FileOperatorDir))
		}
		ca, err := pki.LoadCA(filepath.Join(dir, members[0].ID))
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "CA SHA-256: %s\n", ca.Fingerprint())
		return nil
	}
	return cmd
}

// addRouters creates the directories of routers.
func addRouters(out io.Writer, dir, from string, routers []string, replicas []pki.Member, now time.Time) error {
	if from == "" {
		return errors.New("--router needs --ca, the directory of a replica of the cluster")
	}
	for _, name := range routers {
		if err := pki.AddRouter(dir, from, name, replicas, now); err != nil {
			return err
		}
		fmt.Fprintf(out, "router %s: %s\n", name, filepath.Join(dir, name))
	}
	return nil
}

// addHosts creates directories with certificates of hosts.
func addHosts(out io.Writer, dir, from string, hosts []string, now time.Time) error {
	if from == "" {
		return errors.New("--host needs --ca, the directory of a replica of the cluster")
	}
	for _, id := range hosts {
		if err := pki.AddHost(dir, from, id, now); err != nil {
			return err
		}
		fmt.Fprintf(out, "host %s: %s\n", id, filepath.Join(dir, id))
	}
	return nil
}

// newSealKey creates a keyring and returns its file's content, which every replica
// gets.
func newSealKey() (content []byte, err error) {
	keys, err := seal.New()
	if err != nil {
		return nil, fmt.Errorf("make the sealing key: %w", err)
	}
	dir, err := os.MkdirTemp("", "berth-init-*")
	if err != nil {
		return nil, fmt.Errorf("make the sealing key: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, pki.FileSealKey)
	if err := keys.Save(path); err != nil {
		return nil, fmt.Errorf("make the sealing key: %w", err)
	}
	return os.ReadFile(path)
}
