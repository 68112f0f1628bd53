-- One row a role and relation: how often calls extend their history, branch from it or restart. Branches and
-- restarts of a harness that should only extend show what it changes in its own history.
-- Key: role, relation
with final as (
    select
        role,
        relation,
        count(*) as calls,
        count(retry_of) as retries,
        sum(shared_len)::bigint as shared_tokens,
        sum(n_context)::bigint as context_tokens
    from calls
    group by role, relation
)

select * from final
