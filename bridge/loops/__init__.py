"""The reconcilers: look (snapshot), decide (core), act (apply), look again."""
