package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/rotation"
)

func caCommand() *cobra.Command {
	d := &rotation.Dir{}
	cmd := &cobra.Command{
		Use:   "ca",
		Short: "Show or exchange the cluster's certificate authority",
		Long: `Ca shows or changes ca.crt and ca.key in a replica's directory. It changes these
files alone: copy them to the other replicas, whose files must say the same, with the
same owner and mode. A replica that runs reads them again within seconds, and tells
hosts and routers, which ask every minute.

To exchange the CA, without a stop:
  1. controlplane ca add, and copy both files. Everybody accepts certificates of the
     new CA, too, and none is signed with it yet.
  2. controlplane ca use NEW, and copy ca.key. Replicas, hosts and routers replace
     their certificates at once. It is refused until everybody accepts the new CA.
     Give operators new certificates: controlplane init --ca DIR --operator NAME.
     If ca.key may have been stolen: ca use --no-renewal NEW. Who has the old key can
     make certificates of any name by it, and would have them replaced, too. So nobody
     has: give each host and router one by hand, controlplane init --ca DIR.
  3. controlplane ca rm OLD, and copy both files. It is refused until everybody has a
     certificate of the new CA. Join tokens from before step 2, and operators'
     certificates of the old CA, are refused from then on.
Each step can be repeated. Before step 3 the way back is ca use OLD and, as step 3, ca
rm NEW. Steps 2 and 3 ask all replicas, which must have run for two minutes.
controlplane ca ls shows who is how far.`,
		Example: `  controlplane ca ls --pki-dir /etc/berth/pki
  controlplane ca add
  controlplane ca use 0a1b2c3d4e5f6071
  controlplane ca rm 9a8b7c6d5e4f3021`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.PersistentFlags().StringVar(&d.Path, "pki-dir", os.Getenv("BERTH_PKI_DIR"), "directory that init wrote for a replica (default BERTH_PKI_DIR)")
	cmd.PersistentFlags().StringArrayVar(&d.Peers, "peer", nil, "host:port of a replica's peer port (default: from the directory)")
	use := &cobra.Command{
		Use: "use CA", Short: "Sign with a CA, which everybody must trust by now", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return d.Use(cmd.Context(), cmd.OutOrStdout(), args[0]) },
	}
	use.Flags().BoolVar(&d.NoRenewal, "no-renewal", false, "do not renew certificates of other CAs: the key of one may have been stolen")
	cmd.AddCommand(
		use,
		&cobra.Command{
			Use: "ls", Short: "List the CAs, and who trusts which", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				return d.List(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
			},
		},
		&cobra.Command{
			Use: "add", Short: "Add a CA that is trusted, and does not sign yet", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return d.Add(cmd.OutOrStdout()) },
		},
		&cobra.Command{
			Use: "rm CA", Short: "Remove a CA, of which nobody may have a certificate any more", Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				return d.Remove(cmd.Context(), cmd.OutOrStdout(), args[0])
			},
		},
	)
	return cmd
}
