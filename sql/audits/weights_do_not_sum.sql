-- One row an execution whose token weights do not sum to its advantage (to 1e-12 of it), or whose targets or
-- paths are not those of its segments, or that has an advantage without a valid assessment, or the other way
-- round.
-- Key: group_id, execution_id, reason
with counted as (
    select
        group_id,
        execution_id,
        coalesce(sum(length) filter (target), 0)::bigint as in_segments,
        count(distinct path) as paths
    from segments
    group by group_id, execution_id
),

joined as (
    select
        coalesce(w.group_id, s.group_id) as group_id,
        coalesce(w.execution_id, s.execution_id) as execution_id,
        w.valid,
        w.advantage,
        w.token_weight,
        w.n_targets,
        w.n_paths,
        coalesce(s.in_segments, 0) as in_segments,
        coalesce(s.paths, 0) as paths
    from weights as w
    full join counted as s on s.execution_id = w.execution_id
),

judged as (
    select
        *,
        case
            when n_targets is distinct from in_segments then 'targets are not those of the segments'
            when n_paths is distinct from paths then 'paths are not those of the segments'
            when valid <> (advantage is not null) then 'validity and advantage disagree'
            when (n_targets > 0 and valid) <> (token_weight is not null)
                then 'a token weight without targets, or targets without one'
            when not coalesce(isfinite(advantage), true) then 'advantage is not a finite number'
            when token_weight is not null
                and not abs(token_weight * n_targets - advantage) <= 1e-12 * abs(advantage)
                then 'weights do not sum to the advantage'
        end as reason
    from joined
),

final as (
    select group_id, execution_id, reason, advantage, token_weight, n_targets, in_segments
    from judged
    where reason is not null
)

select * from final
