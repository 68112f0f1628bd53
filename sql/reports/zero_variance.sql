-- Question: Which groups teach nothing, because their scores do not differ?
-- One row a complete group with all scores equal, or with fewer than two: each of its advantages is 0
-- exactly. `score` is the one that all have; `sampled_tokens` is what the group cost.
-- Then: many groups at the best score ask for harder tasks, many at the worst for easier ones.
-- Empty: every complete group has scores that differ, or no group is complete.
-- Key: group_id
with sampled as (
    select group_id, sum(n_output)::bigint as sampled_tokens
    from calls
    group by group_id
),

final as (
    select
        g.group_id,
        g.consumed_step as step,
        case
            when s.valid = 0 then 'no valid score'
            when s.valid = 1 then 'one valid score'
            else 'all scores equal'
        end as reason,
        s.mean as score,
        s.executions,
        s.valid,
        s.executions - s.valid as missing,
        coalesce(t.sampled_tokens, 0) as sampled_tokens
    from group_statistics as s
    join groups as g on g.group_id = s.group_id
    left join group_state as p on p.group_id = s.group_id
    left join sampled as t on t.group_id = s.group_id
    where (s.zero_variance or s.valid < 2) and (p.complete or g.state <> 'DISPATCHED')
)

select * from final
